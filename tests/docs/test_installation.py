"""Nobody is told to install a stranger's package: the public index's `tpy` is another project's, and ours is not there yet."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def requirements(text: dict[str, list[str]]) -> dict[str, list[Requirement]]:
    """The requirements by extra."""
    return {extra: [Requirement(each) for each in given] for extra, given in text.items()}


FOR_DEVELOPERS = {"bench", "coverage", "demo", "dev", "fuzz", "page", "release", "site"}


def test_what_a_server_installs_is_bounded_where_the_next_major_version_breaks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = requirements(project["optional-dependencies"])
    needed = [each for extra, given in extras.items() if extra not in FOR_DEVELOPERS for each in given]
    needed += [each for each in map(Requirement, project["dependencies"]) if each.name in ("numpy", "protobuf", "hypercorn")]
    assert [str(each) for each in needed if not each.specifier or each.specifier.contains("9999")] == []


def test_the_tested_versions_are_within_the_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    asked = [
        *map(Requirement, project["dependencies"]),
        *(each for given in requirements(project["optional-dependencies"]).values() for each in given),
    ]
    outside = [
        f"{each}: tested with {tested[name]}"
        for each in asked
        if (name := canonicalize_name(each.name)) in tested and not each.specifier.contains(tested[name])
    ]
    assert outside == []
