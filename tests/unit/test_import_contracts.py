"""The import contracts of pyproject.toml hold, and each of them can fail (a canary per contract)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "tpy": ROOT / "src",
    "tpy_backends": ROOT / "data",
    "tpy_cloud": ROOT / "control",
    "tpy_control": ROOT / "control",
    "tpy_data": ROOT / "data",
    "tpy_native": ROOT / "data",
    "tpy_page": ROOT / "src",
    "tpy_platforms": ROOT / "src",
    "tpy_tools": ROOT / "src",
}
CONTRACTS = [c["name"] for c in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]]

CANARIES = {
    "layers": ("tpy/config/__init__.py", "import tpy.services"),
    "frontends never see the store or the backend contract": ("tpy/frontends/http/app.py", "import tpy.state"),
    "the remote engine never sees the store or the backend contract": ("tpy/remote/__init__.py", "import tpy.state"),
    "the planes never see each other": ("tpy_control/options.py", "import tpy_data.registry"),
    "the control plane never sees a backend": ("tpy_control/options.py", "import tpy.backend"),
    "a backend sees the plugin contract only": ("tpy_data/backends/identity/backend.py", "import tpy_data.engine"),
    "the control plane runs under any event loop": ("tpy_control/options.py", "import trio"),
    "the server never sees the tools": ("tpy/cli/serve.py", "import tpy_tools.load"),
    "the server never sees a platform": ("tpy/frontends/http/app.py", "import tpy_platforms.openai"),
    "the server never sees the page": ("tpy/frontends/http/app.py", "import tpy_page.page_files"),
    "the server never sees what loads compiled plug-ins": ("tpy_data/engine/data_plane.py", "import tpy_native.library"),
    "what loads compiled plug-ins sees contracts only": ("tpy_native/backend/backend.py", "import tpy_data.engine"),
    "the server never sees repositories in the cloud": ("tpy_control/run.py", "import tpy_cloud.source"),
    "repositories in the cloud see the seam of sources only": ("tpy_cloud/kind.py", "import tpy_control.plane"),
    "the server never sees a backend over a framework": ("tpy_data/registry.py", "import tpy_backends.onnxruntime"),
    "tools ask a server, and only check, doctor and init look at its parts": (
        "tpy_tools/commands/infer_request.py",
        "import tpy_data.registry",
    ),
    "no import circles between siblings": ("tpy/backend/execution.py", "import tpy.backend.contract"),
}


def lint(folder: Path) -> tuple[int, str]:
    """Exit code and output of the linter for the packages in `folder`."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages and their contracts."""
    for name, where in PACKAGES.items():
        shutil.copytree(where / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


def test_every_contract_has_a_canary() -> None:
    assert list(CANARIES) == CONTRACTS


def test_contracts_hold(copy: Path) -> None:
    code, output = lint(copy)
    assert code == 0, output


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_forbidden_import_is_found(copy: Path, name: str) -> None:
    path, statement = CANARIES[name]
    with (copy / path).open("a", encoding="utf-8") as file:
        file.write(f"\n{statement}\n")
    code, output = lint(copy)
    assert code == 1, output
    assert f"{name} BROKEN" in output, output
