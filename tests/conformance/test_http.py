"""Every recorded request, sent to `tpy serve`: the answer is Triton's, or a deviation that was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .cases import CASES
from .deviations import DEVIATIONS, MALFORMED_IS_400
from .record import record
from .repository import build
from .transcript import Answer

RECORDED = msgspec.json.decode((Path(__file__).parent / "transcripts" / "http.json").read_bytes(), type=dict[str, Answer])
SPECIAL = {"GET /v2", "GET /v2/health/ready", "stats of failing", "index", "index of ready ones"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Answer]]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess("--model-control-mode=explicit", "--allow-client-shm=true", repositories=[repository]) as server:
        yield record(server.http)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [case.name for case in CASES]
    assert {*DEVIATIONS, *MALFORMED_IS_400, *SPECIAL} <= set(RECORDED)


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in SPECIAL])
def test_answer(answers: dict[str, Answer], name: str) -> None:
    ours, triton = answers[name], RECORDED[name]
    deviation = DEVIATIONS.get(name)
    if deviation is not None:
        assert ours.status == deviation.status
        assert re.fullmatch(deviation.error, ours.json["error"]), ours.json["error"]
        return
    status = 400 if name in MALFORMED_IS_400 else triton.status
    assert (ours.status, ours.json, ours.text, ours.binary) == (status, triton.json, triton.text, triton.binary)
    length = "inference-header-content-length"
    assert (ours.headers.get(length) is None) == (triton.headers.get(length) is None)
    assert ("allow" in ours.headers) == (ours.status == 405), "Triton names no methods (RFC 9110 wants them)"


def test_bodies_are_declared_as_what_they_are(answers: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        if answer.binary:
            assert answer.headers["content-type"] == "application/octet-stream", name
        elif answer.json is not None:
            assert answer.headers["content-type"] == "application/json", name


def test_server_metadata_names_what_is_offered(answers: dict[str, Answer]) -> None:
    ours, triton = answers["GET /v2"].json, RECORDED["GET /v2"].json
    assert ours["name"] == "triton"
    assert set(ours["extensions"]) == set(triton["extensions"])


def test_a_failed_load_call_leaves_the_server_ready(answers: dict[str, Answer]) -> None:
    """A model that was asked for by a call could not be loaded: Triton's server is not ready from then on."""
    assert (RECORDED["GET /v2/health/ready"].status, answers["GET /v2/health/ready"].status) == (400, 200)


def test_a_response_with_an_error_counts_as_failed(answers: dict[str, Answer]) -> None:
    """Triton 2.51 counts it as a success; executions and batches are the same."""
    (ours,), (triton,) = answers["stats of failing"].json["model_stats"], RECORDED["stats of failing"].json["model_stats"]
    assert (ours["execution_count"], ours["batch_stats"]) == (triton["execution_count"], triton["batch_stats"])
    assert (ours["inference_stats"]["success"]["count"], ours["inference_stats"]["fail"]["count"]) == (1, 7)
    assert ours["inference_count"] == 1


def _states(index: list[dict[str, Any]]) -> dict[tuple[str, str | None], str | None]:
    return {(row["name"], row.get("version")): row.get("state") for row in index}


def test_index(answers: dict[str, Answer]) -> None:
    ours, triton = _states(answers["index"].json), _states(RECORDED["index"].json)
    # A configuration that cannot be read has no version; Triton shows neither state nor reason for it.
    refused = {(name, None): "UNAVAILABLE" for name in ("bad_field", "bad_name", "bad_syntax", "no_versions")}
    # Validated when the version is loaded, not before; and Triton's stub hangs.
    late = {("bad_preferred", "1"): "UNAVAILABLE", ("no_file", "1"): "UNAVAILABLE"}
    expected = {key: state for key, state in triton.items() if key not in refused and key[0] not in ("bad_preferred", "no_file")}
    assert {key: state for key, state in ours.items() if key not in refused} == {**expected, **late}
    reasons = {row["name"]: row.get("reason", "") for row in answers["index"].json if row.get("state") != "READY"}
    assert all(reasons.values())
    ready = _states(answers["index of ready ones"].json)
    assert ready == _states(RECORDED["index of ready ones"].json)
