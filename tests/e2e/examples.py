"""The programs and the data of the examples, for tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from .server import ServerProcess

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
Serve = Callable[[str], ServerProcess]


def program(path: str) -> ModuleType:
    """A file of the examples as a module; nothing of it is imported under a name that others could find."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, EXAMPLES / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package_file(package: str, *parts: str) -> Path:
    """A file inside a package; the test, or the module of tests, is skipped where the package is not installed."""
    try:
        found = program("packages.py").package_file(package, *parts)
    except SystemExit as missing:
        pytest.skip(str(missing), allow_module_level=True)
    assert isinstance(found, Path)
    return found


def python_command(path: str, *arguments: object) -> list[str]:
    """The command that runs a program of the examples."""
    return [sys.executable, str(EXAMPLES / path), *map(str, arguments)]
