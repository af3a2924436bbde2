"""Every recorded request of a sequence, sent to `tpy serve`: Triton's answer, or a deviation that was meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .sequence_cases import HTTP_CASES, STREAMS
from .sequence_record import Transcript, record
from .sequence_repository import build

RECORDED = msgspec.json.decode((Path(__file__).parent / "transcripts" / "sequences.json").read_bytes(), type=Transcript)

OWN_CONTROL = "a control of one's own"
"""A bracket is missing in the text of Triton 2.51."""

FAILED = "statistics of direct"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transcript]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess(repositories=[repository]) as server:
        yield record(server.http, server.grpc)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED.http) == [case.name for case in HTTP_CASES]
    assert list(RECORDED.streams) == [case.name for case in STREAMS]


@pytest.mark.parametrize("name", [name for name in RECORDED.http if name != FAILED])
def test_http(answers: Transcript, name: str) -> None:
    ours, triton = answers.http[name], RECORDED.http[name]
    if name == OWN_CONTROL:
        assert ours.json["error"] == triton.json["error"].replace("input(s) ]", "input(s) []")
    else:
        assert (ours.json, ours.text) == (triton.json, triton.text)
    assert ours.status == (400 if triton.status == 500 and name != "failing: 2. 22" else triton.status)


def test_statistics(answers: Transcript) -> None:
    """Empty places are rows of a batch and no inferences. Triton counts a request that its model answered with an error as well
    as any other."""
    (ours,), (triton,) = (each.http[FAILED].json["model_stats"] for each in (answers, RECORDED))
    assert (ours["execution_count"], ours["batch_stats"]) == (triton["execution_count"], triton["batch_stats"])
    assert ours["inference_count"] == triton["inference_count"] - 1
    counts = ours["inference_stats"]
    assert (counts["success"]["count"], counts["fail"]["count"]) == (ours["inference_count"], 1)


@pytest.mark.parametrize("name", RECORDED.streams)
def test_streams(answers: Transcript, name: str) -> None:
    assert answers.streams[name] == RECORDED.streams[name]
