"""Every recorded gRPC call of a decoupled model, made to `tpy serve`: the answer is Triton's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .generate_repository import build
from .grpc_decoupled_cases import CASES
from .grpc_record import record
from .grpc_transcript import GrpcAnswer

RECORDED = msgspec.json.decode(
    (Path(__file__).parent / "transcripts" / "grpc_decoupled.json").read_bytes(), type=dict[str, GrpcAnswer]
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, GrpcAnswer]]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess(repositories=[repository]) as server:
        yield record(server.grpc, CASES)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [case.name for case in CASES]


@pytest.mark.parametrize("name", RECORDED)
def test_answer(answers: dict[str, GrpcAnswer], name: str) -> None:
    assert answers[name] == RECORDED[name]
