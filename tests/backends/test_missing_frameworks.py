"""A backend whose framework is not installed says so, and how to get it."""

from __future__ import annotations

import importlib
import sys

import pytest

from tpy.errors import Unavailable
from tpy_data.backends.creation import without_module
from tpy_data.registry import BackendRegistry

FRAMEWORKS = {
    "dali": ("nvidia.dali", "DALI", "dali"),
    "fil": ("treelite", "treelite", "fil"),
    "litert": ("ai_edge_litert", "LiteRT", "litert"),
    "openvino": ("openvino", "OpenVINO", "openvino"),
    "sklearn": ("sklearn", "scikit-learn", "sklearn"),
    "tensorflow": ("tensorflow", "TensorFlow", "tensorflow"),
}
"""Of a backend: its module, its name for people, and the extra that brings it."""


@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_the_extra_is_named(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, extra = FRAMEWORKS[backend]
    for loaded in [each for each in sys.modules if each.startswith(f"tpy_backends.{backend}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Unavailable, match=rf"^backend '{backend}' needs {name}, which cannot be imported .*extra `{extra}`"):
        BackendRegistry().get(backend)


@pytest.mark.parametrize("known", [True, False])
def test_a_module_that_is_not_to_be_found(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import colorsys

    if not known:
        monkeypatch.delitem(sys.modules, "colorsys")
    with without_module("colorsys"), pytest.raises(ImportError, match="colorsys"):
        importlib.import_module("colorsys")
    assert (sys.modules.get("colorsys") is colorsys) is known
    assert importlib.import_module("colorsys").__name__ == "colorsys"
