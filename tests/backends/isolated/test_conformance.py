"""The published suite against backends whose instances are in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.backends import test_conformance as in_server
from tests.backends import test_third_party as third_party
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.testing.conformance import BackendUnderTest, Stage
from tpy_data.backends.isolated import IsolatedBackend
from tpy_data.registry import BackendRegistry


def isolated(config: ModelConfig) -> ModelConfig:
    """The same, with `isolation` `process`."""
    return msgspec.structs.replace(config, parameters={**config.parameters, "isolation": ModelParameter(string_value="process")})


@pytest.fixture(scope="module")
def registry() -> Iterator[BackendRegistry]:
    """One for all tests: they share the process that their workers are forked from."""
    registry = BackendRegistry()
    yield registry
    registry.close()


class Isolated:
    """In front of a class that tests a backend: the same, each instance in a worker."""

    @pytest.fixture
    def stage(self, registry: BackendRegistry, subject: BackendUnderTest, tmp_path: Path) -> Stage:
        config = isolated(subject.config)
        backend = registry.for_model(config)
        assert isinstance(backend, IsolatedBackend)
        fields = {name: getattr(subject, name) for name in BackendUnderTest.__dataclass_fields__}
        broken = subject.broken_config
        fields |= {"config": config, "broken_config": None if broken is None else isolated(broken)}
        return Stage(BackendUnderTest(**fields), backend, tmp_path)


class TestIdentity(Isolated, in_server.TestIdentity):
    pass


class TestOnnxRuntime(Isolated, in_server.TestOnnxRuntime):
    pass


@pytest.mark.usefixtures("installed")
class TestUpper(Isolated, third_party.TestUpper):
    @pytest.fixture
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(third_party.THIRD_PARTY)
