"""Every recorded request to generate and generate_stream, sent to `tpy serve`: Triton's answer, or a deviation that was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .generate_cases import CASES
from .generate_record import Exchange, record
from .generate_repository import build

RECORDED = msgspec.json.decode((Path(__file__).parent / "transcripts" / "generate.json").read_bytes(), type=dict[str, Exchange])

BY_CODE = {
    "!": 500,
    "!end": 503,
    "raise": 500,
}
"""Triton answers every failure of a model with 400; here the status is that of the error's code. By what the model does."""

OWN_TEXT = {
    # Integers that do not fit are refused; Triton takes their lowest bits.
    "int 2147483648": "Unable to parse 'data': .*",
    "int 1099511627776": "Unable to parse 'data': .*",
    "byte 256": "Unable to parse 'data': .*",
    # Triton 2.51 counts inputs and does not look at which.
    "only the optional one": r"\[request id: .*\] expected number of inputs between 1 and 2 but got 1 inputs for model 'two'.*",
}

SPECIAL = {"stats of stream", "stream: misuse", "stream SSE: misuse", "stream: said"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Exchange]]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess(repositories=[repository]) as server:
        yield record(server.http)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [case.name for case in CASES]
    assert {*OWN_TEXT, *SPECIAL} <= set(RECORDED)


def _status(name: str, triton: Exchange) -> int:
    act = name.partition(": ")[2]
    if name.startswith("stream") and act in BY_CODE:
        return BY_CODE[act]
    return 400 if triton.status == 500 else triton.status


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in SPECIAL])
def test_answer(answers: dict[str, Exchange], name: str) -> None:
    ours, triton = answers[name], RECORDED[name]
    if name in OWN_TEXT:
        assert ours.status == 400
        assert re.fullmatch(OWN_TEXT[name], ours.json["error"]), ours.json
        return
    assert (ours.status, ours.json, ours.events, ours.text) == (_status(name, triton), triton.json, triton.events, triton.text)
    if triton.events is not None:
        assert ours.content_type == triton.content_type


def test_misuse_of_a_sender(answers: dict[str, Exchange]) -> None:
    assert answers["stream: misuse"] == RECORDED["stream: misuse"]
    assert answers["stream: said"] == RECORDED["stream: said"]


def test_statistics(answers: dict[str, Exchange]) -> None:
    """Triton 2.51 counts executions that did not raise, whatever the responses said, and has no response_stats for Python."""
    (ours,), (triton,) = (
        document["model_stats"] for document in (answers["stats of stream"].json, RECORDED["stats of stream"].json)
    )
    assert (ours["execution_count"], ours["batch_stats"]) == (triton["execution_count"], triton["batch_stats"])
    counts = ours["inference_stats"]
    assert counts["success"]["count"] + counts["fail"]["count"] == triton["execution_count"]
    assert ours["response_stats"]["0"]["success"]["count"] > 0
