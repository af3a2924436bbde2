"""Builds what is published: `python -m release`, into dist/. With `--version X.Y.Z` it makes a release: that version, its section
of the changelog from the files in changes/, a commit, and, once everything is built of it, a tag.

Use: make dist, or make release VERSION=X.Y.Z
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from packaging.version import InvalidVersion, Version

from release.artifacts import Refused, build_twice

ROOT = Path(__file__).parents[1]
UNRELEASED = "## [Unreleased]\n"
_MODULE = Path("src", "tpy", "__init__.py")


def changes_of(root: Path) -> list[Path]:
    """The files of changes/ that have an entry each."""
    return sorted((root / "changes").glob("*.*.md"))


def rendered(root: Path, version: str, date: str) -> str:
    """The entries in changes/, grouped; "" if it has none. Raises Refused for a file whose name or type is wrong."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--dir", root, "--version", version, "--date", date]
    if not changes_of(root):
        return ""
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    entries = run.stdout.partition("\n")[2].strip()
    if run.returncode or entries.count("\n- ") < len(changes_of(root)):
        names = ", ".join(file.name for file in changes_of(root))
        raise Refused(
            f"changes/: expected files NAME.TYPE.md with a list item each (changes/README.md), got {names}. {run.stderr}"
        )
    return entries


def changelog_with(text: str, version: str, date: str, entries: str = "") -> str:
    """The changelog with a section for a version: what the section Unreleased says, then these entries. Raises Refused if there
    is nothing."""
    before, found, behind = text.partition(UNRELEASED)
    section, mark, older = behind.partition("\n## [")
    written = section.strip() if re.search(r"^- ", section, re.MULTILINE) else ""
    parts = [f"## [{version}] - {date}", *(part for part in (written, entries) if part)]
    if not found or len(parts) == 1:
        raise Refused("neither changes/ nor the section Unreleased of CHANGELOG.md has entries: there is nothing to release")
    return f"{before}{UNRELEASED}\n" + "\n\n".join(parts) + f"\n{mark}{older}"


def release(root: Path, version: str, build: Callable[[Path], list[Path]]) -> list[Path]:
    """Commit and tag a version, once `build` has made the files of that commit, which it returns. Raises Refused, and has changed
    nothing then: for what is not a version or not a newer one, for a tree with changes, without anything to release, and where
    `build` refuses."""
    found = re.search(r'^__version__ = "(.+)"$', (root / _MODULE).read_text(), re.MULTILINE)
    if found is None:
        raise Refused(f"{_MODULE} has no version")
    present = found[1]
    try:
        newer = Version(version) > Version(present)
    except InvalidVersion:
        raise Refused(f"expected a version such as 1.2.3, got '{version}'") from None
    tags = _git(root, "tag").splitlines()
    if f"v{version}" in tags:
        raise Refused(f"the tag v{version} is there already")
    if not newer and version != present:
        raise Refused(f"expected a version newer than {present}, got {version}")
    if _git(root, "status", "--porcelain"):
        raise Refused("the tree has changes that are not committed")
    with tempfile.TemporaryDirectory(prefix="tpy-release-") as scratch:
        tree = Path(scratch) / "tree"
        _git(root, "worktree", "add", "--detach", str(tree), "HEAD")
        try:
            _write(tree, present, version)
            _git(tree, "add", "--all")
            _git(tree, "commit", "--allow-empty", "-m", f"Release {version}")
            commit = _git(tree, "rev-parse", "HEAD")
            files = build(tree)
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))
    _git(root, "tag", "-a", f"v{version}", "-m", f"tpy {version}", commit)
    try:
        _git(root, "merge", "--ff-only", commit)
    except Refused:
        _git(root, "tag", "-d", f"v{version}")
        raise
    return files


def _write(tree: Path, present: str, version: str) -> None:
    """Write the version and its section of the changelog."""
    module, changelog = tree / _MODULE, tree / "CHANGELOG.md"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    changelog.write_text(changelog_with(changelog.read_text(), version, date, rendered(tree, version, date)))
    module.write_text(module.read_text().replace(f'__version__ = "{present}"', f'__version__ = "{version}"'))
    for file in changes_of(tree):
        file.unlink()


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Build what is published, twice, and compare.")
    parser.add_argument("--version", help="make a release of this version: changelog, commit, tag")
    parser.add_argument("--to", type=Path, default=root / "dist", help="folder for the files (dist)")
    given = parser.parse_args(words)
    try:
        build = partial(build_twice, to=given.to)
        files = build(root) if given.version is None else release(root, given.version, build)
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size:>10,}  {file}")
    return 0


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
