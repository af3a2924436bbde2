"""Every recorded request to cached and rate limited models, sent to `tpy serve`: the answer is Triton's, or a deviation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .cache_record import CASES, FLAGS, build, record
from .generate_record import Exchange

RECORDED = msgspec.json.decode((Path(__file__).parent / "transcripts" / "cache.json").read_bytes(), type=dict[str, Exchange])

TOLD_WHY = {
    "load cached_sequence": "not currently support model cached_sequence with sequence batching scheduler. Please disable",
    "load cached_decoupled": "not currently support model cached_decoupled with 'decoupled' transaction policy. Please disable",
}
"""Triton says this in its log, and to the caller only that it failed to poll."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Exchange]]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess("--model-control-mode=explicit", *FLAGS, repositories=[repository]) as server:
        yield record(server.http)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [case.name for case in CASES]


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in TOLD_WHY])
def test_answer(answers: dict[str, Exchange], name: str) -> None:
    ours, triton = answers[name], RECORDED[name]
    assert (ours.status, _stable(ours.json)) == (triton.status, _stable(triton.json))


@pytest.mark.parametrize("name", TOLD_WHY)
def test_a_model_that_cannot_be_cached_fails_with_the_reason(answers: dict[str, Exchange], name: str) -> None:
    assert answers[name].status == 400
    assert TOLD_WHY[name] in answers[name].json["error"]


def _stable(answer: Any) -> Any:
    """Without what differs on purpose: an ensemble's outputs come in its configuration's order, and its parameters also from the
    cache, where Triton loses them."""
    if isinstance(answer, dict) and answer.get("model_name") == "cached_ensemble":
        outputs = sorted(answer["outputs"], key=lambda output: str(output["name"]))
        return {**{key: value for key, value in answer.items() if key != "parameters"}, "outputs": outputs}
    return answer
