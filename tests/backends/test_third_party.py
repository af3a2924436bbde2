"""A backend that is not ours is found by its entry point, and passes the suite like ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tpy.config import ModelConfig
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.errors import Unavailable
from tpy.messages import DataType
from tpy.testing.conformance import BackendConformance, BackendUnderTest
from tpy_data.registry import BackendRegistry

THIRD_PARTY = Path(__file__).parent / "third_party"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its distribution is on sys.path for this test."""
    monkeypatch.syspath_prepend(THIRD_PARTY)


@pytest.mark.usefixtures("installed")
class TestUpper(BackendConformance):
    @pytest.fixture
    def registry(self) -> Iterator[BackendRegistry]:
        registry = BackendRegistry()
        yield registry
        registry.close()

    @pytest.fixture
    def subject(self, registry: BackendRegistry) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: registry.get("upper"),
            config=ModelConfig(
                name="shouting",
                backend="upper",
                max_batch_size=8,
                input=(ModelInput(name="TEXT", data_type=DataType.BYTES, dims=(1,)),),
                output=(ModelOutput(name="SHOUT", data_type=DataType.BYTES, dims=(1,)),),
            ),
            sample=lambda n: {"TEXT": np.array([[f"text {n}".encode()], [b"more"]][: 1 + n % 2], dtype=object)},
            expected=lambda inputs: {"SHOUT": np.array([[row[0].upper()] for row in inputs["TEXT"]], dtype=object)},
            failing={"TEXT": np.array([[b"\xff"]], dtype=object)},
        )


@pytest.mark.usefixtures("installed")
def test_it_is_listed_with_its_distribution_and_its_settings() -> None:
    registry = BackendRegistry(backend_config={"upper": {"key": "own"}}, global_config={"key": "all", "other": "all"})
    row = next(row for row in registry.available() if row.name == "upper")
    assert row.path == "tpy-upper 1.0"
    assert row.config == {"key": "own", "other": "all"}
    assert registry.get("upper").settings.config == row.config  # type: ignore[attr-defined]  # the test's own class


@pytest.mark.usefixtures("installed")
def test_what_its_package_lacks_is_named() -> None:
    with pytest.raises(
        Unavailable, match=r"backend 'upper-broken' cannot be imported: No module named 'a_package_.*tpy-upper 1.0"
    ):
        BackendRegistry().get("upper-broken")


def test_without_its_distribution_it_is_unknown() -> None:
    assert "upper" not in {row.name for row in BackendRegistry().available()}
