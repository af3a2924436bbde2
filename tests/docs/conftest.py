"""A reader of pages, and the demo repository for the README."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT
from .reader import Reader


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader in an empty folder."""
    return Reader(tmp_path, monkeypatch)


@pytest.fixture
def demo_models(tmp_path: Path) -> Path:
    """The demo repository, where `make demo` puts it."""
    models = tmp_path / "demo" / "models"
    subprocess.run([sys.executable, ROOT / "docs" / "examples" / "demo" / "build.py", models], check=True)
    return models
