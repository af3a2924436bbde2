"""Nobody is told to install a stranger's package: the public index's `tpy` is another project's, and ours is not there yet."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from .pages import ROOT

_EXTRA = re.compile(r"(?<![\w./-])tpy(?:-server)?\[[a-z,-]+\]")
_ASKS_PIP = re.compile(r"\b(?:pip|pipx|uv pip|uv tool|uv|poetry)\s+(?:install|add|run)\b(?P<rest>[^\n`\";|&]*)")


def strangers(text: str) -> list[str]:
    """The commands and requirements in a text that would fetch a distribution of our names from an index."""
    found = [match[0] for match in _EXTRA.finditer(text)]
    for command in _ASKS_PIP.finditer(text):
        words = command["rest"].split()
        found.extend(command[0] for word in words if re.fullmatch(r"'?tpy(-server)?(\[.*)?([=<>~].*)?'?", word))
    return found


def _texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    suffixes = {".md", ".py", ".txt", ".toml", ".yaml", ".yml", ".html", ""}
    return [ROOT / name for name in listed if name and Path(name).suffix in suffixes and not name.startswith("tests/docs/")]


def test_no_text_sends_users_to_a_strangers_package() -> None:
    told = {
        str(path.relative_to(ROOT)): found
        for path in _texts()
        if path.is_file() and (found := strangers(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert not told


@pytest.mark.parametrize(
    "text",
    [
        "pip install tpy",
        "pip install 'tpy[redis]'",
        "install the extra tpy[bench]",
        "python -m pip install --upgrade tpy==1.0",
        "uv pip install tpy-server",
        "pipx install tpy && tpy serve",
    ],
)
def test_what_would_be_found(text: str) -> None:
    assert strangers(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install '/src[cpu]' && useradd tpy",
        "pip install -e '.[cpu]'",
        "pip install dist/tpy_server-0.1.0-py3-none-any.whl",
        "tpy serve models",
        "pip install redis",
    ],
)
def test_what_is_ours(text: str) -> None:
    assert not strangers(text)


def test_the_distribution_has_a_name_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "tpy-server"
    assert set(project["scripts"]) >= {"tpy"}
