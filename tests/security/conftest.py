"""One server for all attacks: it must outlive each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess

from .attacker import Attacker


@pytest.fixture(scope="session")
def attacked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in mode explicit, with the models of tests/chaos, and a cap on bodies that is quick to reach."""
    repository = tmp_path_factory.mktemp("attacked") / "models"
    write_models(repository)
    (repository.parent / "secret.txt").write_text("not to be told\n", encoding="utf-8")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--http-max-input-size=4000000", "--grpc-max-input-size=4000000")
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield server


@pytest.fixture
def attacker(attacked_server: ServerProcess) -> Iterator[Attacker]:
    """Sends what it likes; afterwards the server still serves, and has reported no bug."""
    begin = len(attacked_server.log)
    attacker = Attacker(attacked_server)
    yield attacker
    attacker.check_served()
    said = attacked_server.log[begin:]
    assert not any(line.startswith("E") for line in said.splitlines()), said
