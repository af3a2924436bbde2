"""Every folder named `core` is sans-IO: its modules import nothing that knows a clock, a loop, a thread, a file or chance."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLOCKS_AND_LOOPS = {"time", "trio", "anyio", "asyncio", "hypercorn", "signal"}
THREADS_AND_PROCESSES = {"threading", "concurrent", "queue", "multiprocessing", "subprocess"}
FILES_AND_SOCKETS = {"os", "sys", "io", "pathlib", "shutil", "tempfile", "socket", "selectors", "logging"}
CHANCE = {"random", "secrets", "uuid"}
FORBIDDEN = CLOCKS_AND_LOOPS | THREADS_AND_PROCESSES | FILES_AND_SOCKETS | CHANCE
_CLOCKS = ("tpy.clock", "tpy.alarm")
FORBIDDEN_CALLS = frozenset({"open", "print", "input", "__import__"})


def core_modules() -> list[Path]:
    folders = (ROOT / part for part in ("src", "control", "data"))
    return sorted(path for folder in folders for path in folder.rglob("*.py") if "core" in path.relative_to(ROOT).parts[:-1])


def impurities(source: str) -> list[str]:
    """The imports and calls of a module that a core must not have."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module="pathlib", names=names) if all(name.name.startswith("Pure") for name in names):
                continue  # names of files, which touch none
            case ast.ImportFrom(module=str(module)):
                modules = [module, *(f"{module}.{name.name}" for name in node.names)]
            case ast.Call(func=ast.Name(id=name)) if name in FORBIDDEN_CALLS:
                modules = []
                found.append(f"line {node.lineno}: {name}()")
            case _:
                continue
        # The server's own clock module is a clock too.
        found += [
            f"line {node.lineno}: {name}" for name in modules if name.split(".")[0] in FORBIDDEN or name.startswith(_CLOCKS)
        ]
    return found


def test_there_are_cores() -> None:
    assert any(path.name == "contract.py" for path in core_modules())


@pytest.mark.parametrize("path", core_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_core_is_sans_io(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source", ["import time", "from time import monotonic", "import os.path", "from pathlib import Path", "open('x')"]
)
def test_the_check_can_fail(source: str) -> None:
    assert impurities(source)


@pytest.mark.parametrize("source", ["from tpy.clock import Clock", "from tpy import clock", "import tpy.alarm"])
def test_the_servers_own_clock_counts(source: str) -> None:
    assert impurities(source)
