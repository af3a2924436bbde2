"""A reader of pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from .reader import Reader


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A reader in an empty folder."""
    return Reader(tmp_path, monkeypatch)
