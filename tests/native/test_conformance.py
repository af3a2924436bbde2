"""The published suite of backends against a compiled one: in the server's process, and in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.backends.test_conformance import PAIRS, _copied, _pairs
from tests.native.compiled import library
from tpy.backend import BackendSettings
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.testing.conformance import BackendConformance, BackendUnderTest, Stage
from tpy_data.backends.isolated import IsolatedBackend
from tpy_data.registry import BackendRegistry
from tpy_native.backend import create


def _parameters(**values: str) -> ModelConfig:
    parameters = {key: ModelParameter(string_value=value) for key, value in values.items()}
    return msgspec.structs.replace(PAIRS, backend="copies", parameters=parameters)


class TestCompiled(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="copies", library=library("identity", name="copies"))),
            config=_parameters(),
            sample=_pairs,
            expected=_copied,
        )


class TestCompiledInWorker(TestCompiled):
    @pytest.fixture
    def stage(self, subject: BackendUnderTest, tmp_path: Path) -> Iterator[Stage]:
        folder = library("identity", name="copies").parent
        registry = BackendRegistry()
        backend = registry.for_model(subject.config, (folder,))
        assert isinstance(backend, IsolatedBackend)
        yield Stage(subject, backend, tmp_path)
        registry.close()
