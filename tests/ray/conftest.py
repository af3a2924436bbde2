"""Tests of tpy.ray. Those with a cluster run in a private network, which `make test-ray` makes: Ray listens on all addresses."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from pathlib import Path

import pytest

from .serving import is_private

_WITHOUT_RAY = importlib.util.find_spec("ray") is None
CLUSTERS = (
    "test_clients.py",
    "test_commands.py",
    "test_control.py",
    "test_faults.py",
    "test_offline.py",
    "test_scaling.py",
    "test_per_model.py",
)

if _WITHOUT_RAY:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py")]
else:
    with warnings.catch_warnings():  # Ray's own, when it is imported
        warnings.simplefilter("ignore")
        importlib.import_module("ray.serve")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in CLUSTERS and item.path.parent == Path(__file__).parent and not is_private():
            item.add_marker(pytest.mark.skip(reason="needs a private network: make test-ray"))
