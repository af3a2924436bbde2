"""Builds what is published: `python -m release`, into dist/. With `--version X.Y.Z` it makes the release first: that version, its
section of the changelog from the files in changes/, a commit and a tag.

Use: make dist, or make release VERSION=X.Y.Z
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from release.artifacts import Refused, build_twice

ROOT = Path(__file__).parents[1]
UNRELEASED = "## [Unreleased]\n"


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


def tag(root: Path, version: str) -> None:
    """Commit and tag a version. Raises Refused for a version that is none, or no later one, and for a tree with changes."""
    module, changelog, readme = root / "src" / "tpy" / "__init__.py", root / "CHANGELOG.md", root / "README.md"
    found = re.search(r'^__version__ = "(.+)"$', module.read_text(), re.MULTILINE)
    if found is None:
        raise Refused(f"{module} has no version")
    present = found[1]
    try:
        newer = Version(version) > Version(present)
    except InvalidVersion:
        raise Refused(f"expected a version such as 1.2.3, got '{version}'") from None
    tags = _git(root, "tag").splitlines()
    if not newer and (version != present or f"v{present}" in tags):
        raise Refused(f"expected a version behind {present}, got {version}")
    if _git(root, "status", "--porcelain"):
        raise Refused("the tree has changes that are not committed")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    changelog.write_text(changelog_with(changelog.read_text(), version, date, rendered(root, version, date)))
    for file in changes_of(root):
        file.unlink()
    module.write_text(module.read_text().replace(f'__version__ = "{present}"', f'__version__ = "{version}"'))
    readme.write_text(readme.read_text().replace(f"tpy_server-{present}-", f"tpy_server-{version}-"))
    _git(root, "commit", "-am", f"Release {version}")
    _git(root, "tag", "-a", f"v{version}", "-m", f"tpy {version}")


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Build what is published, twice, and compare.")
    parser.add_argument("--version", help="make a release of this version first: changelog, commit, tag")
    parser.add_argument("--to", type=Path, default=root / "dist", help="folder for the files (dist)")
    given = parser.parse_args(words)
    try:
        if given.version is not None:
            tag(root, given.version)
        files = build_twice(root, given.to)
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 1
    for file in files:
        print(f"{file.stat().st_size:>10,}  {file}")
    return 0


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
