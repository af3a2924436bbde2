"""A Dockerfile, read and played without a container engine: its stages are folders, its RUN commands run on this machine."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .pages import ROOT


class Instruction(NamedTuple):
    """One line: `FROM`, `COPY`, `RUN` and so on, and what is behind it."""

    name: str
    rest: str


def instructions(dockerfile: Path) -> list[Instruction]:
    """Without comments; continued lines are one."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Instruction(*line.split(None, 1)) for line in lines]


def context(folder: Path) -> Path:
    """The build context: tracked files that .dockerignore lets through."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, listed):
        if not is_ignored(name, patterns) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def is_ignored(name: str, patterns: list[str]) -> bool:
    """Returns True if a pattern of .dockerignore matches a path or a folder above it."""
    parts = Path(name).parts
    heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return any(
        fnmatch.fnmatchcase(head, pattern) or (pattern.startswith("**/") and fnmatch.fnmatchcase(Path(head).name, pattern[3:]))
        for pattern in patterns
        for head in heads
    )


class Image(NamedTuple):
    """The last stage: its files, and how it starts."""

    root: Path
    command: list[str]
    environment: dict[str, str]
    user: str


def play(dockerfile: Path, source: Path, folder: Path, environment: Mapping[str, str]) -> Image:
    """Do what the Dockerfile says, with each path below the folder of its stage. A stage that copies from another one gets its
    files at the same paths, as an environment with absolute paths in it needs: the stages share one folder, from which what the
    last one did not copy is removed."""
    kept: set[str] = set()
    stages: list[str] = []
    variables: dict[str, str] = {}
    words: dict[str, list[str]] = {}
    user = ""
    for name, rest in instructions(dockerfile):
        if name == "FROM":
            stages.append(rest.partition(" AS ")[2])
            kept.clear()
            variables.clear()
        elif name == "COPY" and rest.startswith("--from="):
            stage, copied, target = re.fullmatch(r"--from=(\S+) (\S+) (\S+)", rest).groups()  # type: ignore[union-attr]
            assert stage in stages[:-1], f"there is no stage '{stage}' before"
            assert (copied, target) == (target, copied), "an environment cannot be moved"
            kept.add(copied)
        elif name == "COPY":
            what, target = rest.split()
            assert what == "."
            shutil.copytree(source, folder / target.lstrip("/"))
            kept.add(target)
        elif name == "RUN":
            command = re.sub(r"(?<![\w.])/(?=opt/|src\b)", f"{folder}/", rest)
            subprocess.run(command, shell=True, check=True, env={**os.environ, **environment}, cwd=folder)
        elif name == "ENV":
            variables.update(re.findall(r"(\w+)=(\S+)", rest))
        elif name == "USER":
            user = rest
        elif name in ("ENTRYPOINT", "CMD"):
            words[name] = json.loads(rest)
    for found in list(folder.iterdir()):
        if not any(f"/{found.name}/" in f"{path}/" for path in kept):
            shutil.rmtree(found)
    return Image(folder, [*words["ENTRYPOINT"], *words["CMD"]], variables, user)
