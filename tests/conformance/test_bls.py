"""Calls between models, recorded from the real server, is what they see in `tpy serve`: from a process, from a thread
of the server, from a coroutine, from a decoupled model and its threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import ServerProcess

from .bls_record import ASYNC_CASES, CASES, DECOUPLED_CASES, HANGS, LOADED, SYNC_CASES, ask
from .bls_repository import build
from .transcript import HINT

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "transcripts" / "bls.json").read_text())

_WORDS = {word: {"has_error": False, "outputs": {"WORD": [[word], True]}} for word in "ab"}
_END = {"has_error": False, "outputs": {}}
_ERROR = {"error": "no such word", "has_error": True, "outputs": {}}

DEVIATIONS: dict[str, Any] = {
    # An error in the middle of a stream is a response like the others; the recorded version loses it.
    "decoupled_error": [_WORDS["a"], _ERROR, _WORDS["b"], _END],
}

REASONS_FOLLOW = ("load_unknown", "load_config_wrong")
"""After Triton's words for a load that failed, tpy says why."""

OURS: dict[str, Any] = {
    # Newer versions have `cancel`; what comes after it there is up to the called model.
    "caller decoupled_cancel": [_WORDS["a"], [True]],
    # Whether a model is ready may be asked in initialize, also while the server starts.
    "caller in_initialize": {
        "exec": {"raised": "TritonModelException", "text": "BLS is only supported during the 'execute' function."},
        "ready": False,
    },
    "caller load_files_without_config": {
        "raised": "TritonModelException",
        "text": "Failed to load model: Failed to process the request for model 'caller_0_0', message: failed to load 'made', "
        "failed to poll from model repository: files need a configuration; expected the parameter 'config', too",
    },
    # The recorded version hangs when a coroutine iterates over responses.
    "acaller adecoupled": [_WORDS["a"], _WORDS["b"], _END],
    "acaller adecoupled_error": [_WORDS["a"], _ERROR, _WORDS["b"], _END],
    "acaller adecoupled_without": RECORDED["caller decoupled_without"],
    "acaller amodel_error": RECORDED["caller model_error_code"],
}

_THREAD = '\nparameters { key: "TPY_PYTHON_ISOLATION" value { string_value: "thread" } }\n'


def _serve(repository: Path) -> ServerProcess:
    flags = [f"--load-model={name}" for name in LOADED]
    return ServerProcess("--model-control-mode=explicit", *flags, repositories=[repository])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    with _serve(repository) as server:
        yield server


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    build(repository)
    for name in ("caller", "dcaller", "middle"):
        with (repository / name / "config.pbtxt").open("a") as config:
            config.write(_THREAD)
    with _serve(repository) as server:
        yield server


def test_the_transcript_is_of_these_cases() -> None:
    assert list(RECORDED) == [f"{model} {case}" for model, case in CASES]
    assert sorted(HANGS) == sorted(name.removeprefix("acaller ") for name in OURS if name.startswith("acaller "))


def _check(server: ServerProcess, model: str, case: str) -> None:
    expected = DEVIATIONS.get(case, RECORDED[f"{model} {case}"])
    said = ask(server.http, model, case)
    if case in REASONS_FOLLOW:
        text = said["text"]
        assert text.startswith(expected["text"] + ": ")
        said["text"] = expected["text"]
    if isinstance(said, dict) and isinstance(said.get("error"), str):
        said["error"] = HINT.sub("", said["error"])
    assert said == expected


@pytest.mark.parametrize("case", SYNC_CASES)
def test_from_a_process(server: ServerProcess, case: str) -> None:
    _check(server, "caller", case)


@pytest.mark.parametrize("case", SYNC_CASES)
def test_from_a_thread_of_the_server(threaded: ServerProcess, case: str) -> None:
    if case == "load_files":
        pytest.skip("the file that it reads is found by the name of the package of a model in a process")
    _check(threaded, "caller", case)


@pytest.mark.parametrize("case", [*ASYNC_CASES, "one", "again"])
def test_from_a_coroutine(server: ServerProcess, case: str) -> None:
    _check(server, "acaller", case)


@pytest.mark.parametrize("case", DECOUPLED_CASES)
def test_from_a_decoupled_model(server: ServerProcess, case: str) -> None:
    _check(server, "dcaller", case)


@pytest.mark.parametrize("case", DECOUPLED_CASES)
def test_from_a_decoupled_model_in_a_thread_of_the_server(threaded: ServerProcess, case: str) -> None:
    _check(threaded, "dcaller", case)


@pytest.mark.parametrize("name", OURS)
def test_what_the_recorded_version_cannot(server: ServerProcess, name: str) -> None:
    model, case = name.split()
    assert ask(server.http, model, case) == OURS[name]
