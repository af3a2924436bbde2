"""Every recorded request about ensembles, sent to `tpy serve`: Triton's answer, or a deviation that was meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .ensemble_cases import CASES
from .ensemble_record import record
from .ensemble_repository import build
from .generate_record import Exchange

RECORDED = msgspec.json.decode((Path(__file__).parent / "transcripts" / "ensembles.json").read_bytes(), type=dict[str, Exchange])

SPECIAL = {"load no_step", "stats fails"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Exchange]]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with ServerProcess("--model-control-mode=explicit", repositories=[repository]) as server:
        yield record(server.http)


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [case.name for case in CASES]


def _comparable(name: str, answer: Exchange) -> tuple[int, Any, Any, str]:
    document = answer.json
    if isinstance(document, dict) and "outputs" in document and name.startswith("infer"):
        # Triton's order of an ensemble's outputs is that of a hash map; ours the configuration's.
        document = {**document, "outputs": sorted(document["outputs"], key=lambda output: output["name"])}
    if name.startswith("config"):
        document = msgspec.json.decode(msgspec.json.encode(document))
        document["ensemble_scheduling"].setdefault("max_inflight_requests", 0)  # a field that is newer than 2.51
    return answer.status, document, answer.events, answer.text


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in SPECIAL])
def test_answer(answers: dict[str, Exchange], name: str) -> None:
    assert _comparable(name, answers[name]) == _comparable(name, RECORDED[name])


def test_the_reason_stands_behind_triton_s_text(answers: dict[str, Exchange]) -> None:
    ours, triton = answers["load no_step"], RECORDED["load no_step"]
    assert ours.status == triton.status
    assert ours.json["error"].startswith(triton.json["error"])
    assert ours.json["error"].endswith("ensemble_scheduling: must specify 'step' for ensemble 'no_step'")


def test_a_failed_request_counts_once(answers: dict[str, Exchange]) -> None:
    """Triton 2.51 counts those of an ensemble twice."""
    (ours,), (triton,) = (document["stats fails"].json["model_stats"] for document in (answers, RECORDED))
    assert ours["inference_stats"]["fail"]["count"] * 2 == triton["inference_stats"]["fail"]["count"]
    assert ours["inference_stats"]["success"]["count"] == triton["inference_stats"]["success"]["count"] == 1
