"""`make release`: the version, the changelog, the commit and the tag; and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from release.__main__ import changelog_with, changes_of, main, release, rendered
from release.artifacts import Refused

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A thing.\n"


def git(root: Path, *arguments: str) -> str:
    name = ("-c", "user.name=t", "-c", "user.email=t@t")
    return subprocess.run(["git", *name, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with what a release writes to."""
    for variable in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(variable, "t")
    (tmp_path / "src" / "tpy").mkdir(parents=True)
    (tmp_path / "src" / "tpy" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "All")
    return tmp_path


def built(tree: Path) -> list[Path]:
    """Builds of a clean tree, and returns the commit as the name of a file."""
    assert git(tree, "status", "--porcelain") == ""
    return [tree / git(tree, "rev-parse", "HEAD")]


def test_a_release_is_a_commit_with_a_tag(root: Path) -> None:
    release(root, "0.2.0", built)
    assert git(root, "status", "--porcelain") == ""
    assert git(root, "log", "-1", "--format=%s", "v0.2.0") == "Release 0.2.0"
    assert (root / "src" / "tpy" / "__init__.py").read_text() == '__version__ = "0.2.0"\n'
    unreleased, section = (root / "CHANGELOG.md").read_text().split("## [0.2.0] - ")
    assert unreleased == "# Changelog\n\n## [Unreleased]\n\n"
    assert section.endswith("\n\n### Added\n\n- A thing.\n")


def add(root: Path, **changes: str) -> None:
    """Commit files of changes/, by name with an underscore for the dot."""
    folder = root / "changes"
    folder.mkdir()
    (root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name in ("README.md", "template.md.jinja"):
        (folder / name).write_text((ROOT / "changes" / name).read_text())
    for name, text in changes.items():
        (folder / f"{name.replace('_', '.')}.md").write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-qm", "Changes")


def test_the_files_in_changes_become_the_section_of_the_version(root: Path) -> None:
    add(root, trend_fixed="- A fault.\n", b_added="- Two\n  lines.\n", a_added="- One.\n")
    release(root, "0.2.0", built)
    section = (root / "CHANGELOG.md").read_text().partition("## [0.2.0] - ")[2]
    assert section[10:] == "\n\n### Added\n\n- A thing.\n\n### Added\n\n- One.\n- Two\n  lines.\n\n### Fixed\n\n- A fault.\n"
    assert sorted(file.name for file in (root / "changes").iterdir()) == ["README.md", "template.md.jinja"]
    assert git(root, "status", "--porcelain") == ""
    (root / "changes" / "c.changed.md").write_text("- More.\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "A change")
    release(root, "0.3.0", built)
    newest = (root / "CHANGELOG.md").read_text().partition("## [Unreleased]\n\n## [0.3.0] - ")[2]
    assert newest[10:].startswith("\n\n### Changed\n\n- More.\n\n## [0.2.0] - ")


@pytest.mark.parametrize("wrong", [{"a_invented": "- One.\n"}, {"a_added": "No list item.\n"}])
def test_a_file_of_another_form_is_refused(root: Path, wrong: dict[str, str]) -> None:
    add(root, **wrong)
    with pytest.raises(Refused, match=r"expected files NAME\.TYPE\.md"):
        release(root, "0.2.0", built)
    assert git(root, "status", "--porcelain") == ""


def test_what_waits_for_a_release_is_of_that_form() -> None:
    assert rendered(ROOT, "0.2.0", "2026-11-28").count("\n- ") >= len(changes_of(ROOT))


def test_the_first_release_may_have_the_version_that_is_there(root: Path) -> None:
    release(root, "0.1.0", built)
    assert git(root, "tag") == "v0.1.0"


@pytest.mark.parametrize(
    ("version", "text"), [("0.0.9", "expected a version newer than 0.1.0"), ("new", "such as 1.2.3, got 'new'")]
)
def test_versions_that_are_none_or_older_are_refused(
    root: Path, version: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--version", version], root) == 1
    assert text in capsys.readouterr().err
    assert git(root, "tag") == ""


def test_a_release_that_cannot_be_built_leaves_nothing(root: Path) -> None:
    before = git(root, "rev-parse", "HEAD")

    def refused(tree: Path) -> list[Path]:
        raise Refused("two builds have other bytes")

    with pytest.raises(Refused, match="other bytes"):
        release(root, "0.2.0", refused)
    assert git(root, "rev-parse", "HEAD") == before
    assert (git(root, "tag"), git(root, "status", "--porcelain"), git(root, "worktree", "list").count("\n")) == ("", "", 0)


def test_what_is_built_is_what_is_tagged(root: Path) -> None:
    [file] = release(root, "0.2.0", built)
    assert file.name == git(root, "rev-parse", "v0.2.0^{commit}") == git(root, "rev-parse", "HEAD")


def test_a_tag_that_is_there_is_refused_before_anything_is_built(root: Path) -> None:
    git(root, "tag", "v0.2.0")
    with pytest.raises(Refused, match=r"the tag v0\.2\.0 is there already"):
        release(root, "0.2.0", built)


def test_a_branch_that_moves_on_meanwhile_is_not_released(root: Path) -> None:
    def meanwhile(tree: Path) -> list[Path]:
        git(root, "commit", "--allow-empty", "-qm", "Another one")
        return []

    with pytest.raises(Refused, match="git merge"):
        release(root, "0.2.0", meanwhile)
    assert (git(root, "tag"), git(root, "log", "-1", "--format=%s")) == ("", "Another one")


def test_changes_that_are_not_committed_are_refused(root: Path) -> None:
    (root / "new").touch()
    with pytest.raises(Refused, match="not committed"):
        release(root, "0.2.0", built)


def test_nothing_to_release_is_refused() -> None:
    with pytest.raises(Refused, match="nothing to release"):
        changelog_with("## [Unreleased]\n\n### Added\n\n## [0.1.0] - 2026-01-01\n\n- A thing.\n", "0.2.0", "2026-02-02")
