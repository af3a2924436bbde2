"""Every recorded request again, to a server with two frontend processes: answered as by one without."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from . import generate_record, generate_repository, grpc_cases, grpc_decoupled_cases, grpc_record, record, repository

pytestmark = pytest.mark.time_limit(300)

Ask = Callable[[ServerProcess], dict[str, Any]]

EXPLICIT = "--model-control-mode=explicit"

SUITES: dict[str, tuple[Callable[[Path], None], tuple[str, ...], tuple[Ask, ...]]] = {
    "infer": (
        repository.build,
        (EXPLICIT,),
        (lambda server: record.record(server.http), lambda server: grpc_record.record(server.grpc, grpc_cases.CASES)),
    ),
    "generate, decoupled": (
        generate_repository.build,
        (),
        (
            lambda server: generate_record.record(server.http),
            lambda server: grpc_record.record(server.grpc, grpc_decoupled_cases.CASES),
        ),
    ),
}
"""By name: the repository, the flags, and those who ask one server, one after the other."""


TIMING = {"stats of stream"}
"""A request whose client leaves at its first response counts as failed when it learns this before its end, here as there."""


def _answers(folder: Path, suite: str, processes: int) -> dict[str, str]:
    """The answers as text, by asker and name, without the folder's name."""
    build, flags, asks = SUITES[suite]
    folder.mkdir()
    build(folder)
    with ServerProcess(f"--frontend-processes={processes}", *flags, repositories=[folder]) as server:
        answers = [(f"{number} {name}", answer) for number, ask in enumerate(asks) for name, answer in ask(server).items()]
    return {
        name: msgspec.json.encode(answer).decode().replace(str(folder), "")
        for name, answer in answers
        if name.partition(" ")[2] not in TIMING
    }


@pytest.mark.parametrize("suite", SUITES)
def test_answers_do_not_depend_on_where_the_frontend_is(suite: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:  # most of it is waiting
        here, there = threads.map(lambda processes: _answers(tmp_path / str(processes), suite, processes), (0, 2))
    assert list(here) == list(there)
    assert {name: (here[name], there[name]) for name in here if here[name] != there[name]} == {}
