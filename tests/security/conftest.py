"""One server for all attacks: it must outlive each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.models import write_models
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess, tells_model_failure

from .attacker import Attacker

_REFUSALS = ('"Poll failed for model directory ', '"failed to load ', " message_lite.cc:")
"""Errors in the log that say what they should: a model's owner is told why it is not served, by DALI's parser, too."""


RESTRICTED = "model-repository,model-config,logging,trace,shared-memory,statistics"
"""APIs that need a key of `restricted`."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the repository."""
    return tmp_path_factory.mktemp("attacked")


@pytest.fixture(scope="session")
def attacked_server(home: Path) -> Iterator[ServerProcess]:
    """A server in mode explicit, with the models of tests/chaos, one that attacks may break, and a low cap on bodies."""
    repository = home / "models"
    write_models(repository)
    ModelFolder(repository, "bait").config(AFFINE_CONFIG).affine(1, 1.0)
    (repository.parent / "secret.txt").write_text("not to be told\n", encoding="utf-8")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--http-max-input-size=4000000", "--grpc-max-input-size=4000000")
    with ServerProcess(*flags, repositories=[repository], fresh=True) as server:
        yield server


@pytest.fixture
def attacker(attacked_server: ServerProcess, home: Path) -> Iterator[Attacker]:
    """Sends what it likes; afterwards the server still serves, and has reported no bug."""
    begin = len(attacked_server.log)
    attacker = Attacker(attacked_server, home)
    yield attacker
    attacker.check_served()
    said = attacked_server.log[begin:]
    errors = [line for line in said.splitlines() if line.startswith("E") and not tells_model_failure(line)]
    assert not [line for line in errors if not any(each in line for each in _REFUSALS)], said


@pytest.fixture(scope="session")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    """A server whose restricted APIs need a key, on both ports; the load call would work with it."""
    home = tmp_path_factory.mktemp("restricted")
    write_models(home / "models")
    flags = (
        "--model-control-mode=explicit",
        "--load-model=affine",
        f"--http-restricted-api={RESTRICTED}:x-admin=secret",
        f"--grpc-restricted-protocol={RESTRICTED},inference:admin=secret",
    )
    with ServerProcess(*flags, repositories=[home / "models"]) as server:
        yield Attacker(server, home)
