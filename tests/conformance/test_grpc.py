"""Every recorded call, made to `tpy serve`: the answer is Triton's, or a deviation that was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.server import ServerProcess
from tpy.errors import ErrorCode
from tpy.frontends.grpc.calls import GRPC_STATUS
from tpy.frontends.http.codec.response import HTTP_STATUS

from .deviations import DEVIATIONS
from .grpc_cases import CASES
from .grpc_deviations import GRPC_DEVIATIONS, GrpcDeviation
from .grpc_record import record
from .grpc_transcript import GrpcAnswer
from .repository import build

RECORDED = msgspec.json.decode((Path(__file__).parent / "transcripts" / "grpc.json").read_bytes(), type=dict[str, GrpcAnswer])
SPECIAL = {"server ready", "server metadata", "index", "index of ready ones"}


def _deviation(name: str) -> GrpcDeviation | None:
    """Load calls deviate as over HTTP."""
    if name in GRPC_DEVIATIONS:
        return GRPC_DEVIATIONS[name]
    over_http = DEVIATIONS.get(name) if name.startswith("load ") or name == "one input too many" else None
    if over_http is None:
        return None
    code = next(code for code in (ErrorCode.INVALID_ARG, ErrorCode.INTERNAL) if HTTP_STATUS[code] == over_http.status)
    return GrpcDeviation(GRPC_STATUS[code].name, over_http.error)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, GrpcAnswer]]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess("--model-control-mode=explicit", "--allow-client-shm=true", repositories=[repository]) as server:
        yield record(server.grpc, CASES)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [case.name for case in CASES]
    assert {*GRPC_DEVIATIONS, *SPECIAL} <= set(RECORDED)


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in SPECIAL])
def test_answer(answers: dict[str, GrpcAnswer], name: str) -> None:
    ours, triton = answers[name], RECORDED[name]
    deviation = _deviation(name)
    if deviation is not None:
        assert ours.status == deviation.status
        assert re.fullmatch(deviation.details, ours.details), ours.details
        return
    assert (ours.status, ours.details) == (triton.status, triton.details)
    assert ours.responses == triton.responses


def test_a_failed_load_takes_no_server_out_of_its_load_balancer(answers: dict[str, GrpcAnswer]) -> None:
    """A model that was asked for by a call could not be loaded: Triton's server is not ready from then on."""
    assert RECORDED["server ready"].responses == [{}]
    assert answers["server ready"].responses == [{"ready": True}]


def test_server_metadata_names_what_is_offered(answers: dict[str, GrpcAnswer]) -> None:
    (ours,), (triton,) = answers["server metadata"].responses, RECORDED["server metadata"].responses
    assert ours["name"] == "triton"
    assert set(triton["extensions"]) == set(ours["extensions"])


def _states(answer: GrpcAnswer) -> dict[tuple[str, str], str]:
    models: list[dict[str, Any]] = answer.responses[0]["models"]
    return {(row["name"], row.get("version", "")): row.get("state", "") for row in models}


def test_index(answers: dict[str, GrpcAnswer]) -> None:
    ours, triton = _states(answers["index"]), _states(RECORDED["index"])
    # test_http.py says why these differ.
    differing = {"bad_field", "bad_name", "bad_syntax", "no_versions", "bad_preferred", "no_file"}
    assert {key: state for key, state in ours.items() if key[0] not in differing} == {
        key: state for key, state in triton.items() if key[0] not in differing
    }
    assert {state for (name, _), state in ours.items() if name in differing} == {"UNAVAILABLE"}
    assert _states(answers["index of ready ones"]) == _states(RECORDED["index of ready ones"])
