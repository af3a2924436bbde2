"""The pages do what they say: every command and script on them is run (those of how-to pages in `test_how_to*.py`), files are
shown as they are, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .following import follow, name_of
from .pages import ROOT, Block, blocks, commands, matches, pages
from .reader import Reader

RUN = [*pages("docs/tutorial"), ROOT / "docs" / "explanation" / "security.md"]
ALL = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "fuzz" / "README.md",
    *pages("docs", "docs/tutorial", "docs/how-to", "docs/reference", "docs/explanation", "docs/adr", "docs/zh"),
]


def test_the_readme(reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    reader.follow(ROOT / "README.md")


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_commands_of_a_page_work(page: Path, reader: Reader) -> None:
    follow(page, reader)


def _shown_files() -> list[tuple[Path, Block]]:
    return [(page, block) for page in ALL for block in blocks(page) if {"file", "part of"} & block.notes.keys()]


@pytest.mark.parametrize(
    ("page", "block"), _shown_files(), ids=lambda one: name_of(one) if isinstance(one, Path) else str(one.line)
)
def test_a_file_is_shown_as_it_is(page: Path, block: Block) -> None:
    name = block.notes.get("file") or block.notes["part of"]
    text = (ROOT / name).read_text(encoding="utf-8")
    if "file" in block.notes:
        assert text.rstrip("\n") == block.text
    else:
        assert f"\n{block.text}\n" in f"\n{text}\n", f"{name} has no such lines"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in _anchors(place), f"{name_of(page)} links to {target}, which has no such heading"


@pytest.mark.parametrize("folder", ["tutorial", "how-to", "reference", "explanation", "adr"])
def test_each_folder_links_all_its_pages(folder: str) -> None:
    index = (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8")
    missing = [page.name for page in pages(f"docs/{folder}") if page.name != "README.md" and f"]({page.name})" not in index]
    assert not missing


def test_the_files_that_contributors_are_sent_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = {word for code in re.findall(r"`([^`\n]+)`", text) for word in code.split() if word.split("/")[0] in tops}
    assert len(named) > 20
    assert not {name for name in named if not (ROOT / name).exists()}


def _shell_blocks() -> list[tuple[Path, Block]]:
    return [(page, block) for page in ALL for block in blocks(page) if block.language in ("sh", "bash", "shell", "console")]


@pytest.mark.parametrize(
    ("page", "block"), _shell_blocks(), ids=lambda one: name_of(one) if isinstance(one, Path) else str(one.line)
)
def test_commands_can_be_pasted(page: Path, block: Block) -> None:
    assert block.language == "sh", (
        "commands are in blocks of `sh`, and what they print in one of `text` with <!-- prints --> below"
    )
    assert commands(block)
    assert not subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True).stderr


def _uneven_rows(text: str) -> list[str]:
    """The rows of tables that have not as many cells as the head of their table."""
    uneven, columns = [], 0
    for line in re.sub(r"(?ms)^```.*?^```", "", text).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if cells and columns and cells != columns:
            uneven.append(line)
        columns = columns or cells if cells else 0
    return uneven


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_tables_have_even_rows(page: Path) -> None:
    assert not _uneven_rows(page.read_text(encoding="utf-8"))


def test_uneven_rows_are_found() -> None:
    assert _uneven_rows("| a | b |\n|---|---|\n| 1 | 2 |\n| `x|y` | 2 |\n\n| c |\n|---|\n| 3 | 4 |") == [
        "| `x|y` | 2 |",
        "| 3 | 4 |",
    ]
    assert not _uneven_rows("| a |\n|---|\n| `x\\|y` |\n\n```text\n| 1 | 2 |\n```\n")


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_every_block_has_a_language(page: Path) -> None:
    assert not [block.line for block in blocks(page) if not block.language]


@pytest.mark.parametrize("page", ALL, ids=name_of)
def test_no_block_has_prompts(page: Path) -> None:
    assert not [block.line for block in blocks(page) if re.search(r"(?m)^\$ ", block.text)]


@pytest.mark.parametrize("text", ["$ tpy serve x", "curl -d 'a", "curl \\", "ls |"])
def test_what_cannot_be_pasted_is_found(text: str) -> None:
    with pytest.raises(ValueError, match=r"prompt|no end"):
        commands(Block(language="sh", text=text, line=1))


def test_commands_over_several_lines() -> None:
    block = Block(language="sh", text="a \\\n  b\nc |\nd\n\n# about e\ne 'f\n> g'\nh", line=1)
    assert commands(block) == ["a \\\n  b", "c |\nd", "e 'f\n> g'", "h"]


def test_dots_stand_for_what_varies() -> None:
    assert matches("took ... ms\n", "took 12.5 ms\n")
    assert matches("first\n...\nlast", "first\nany\nnumber\nlast\n")
    assert matches("first\n...\nlast", "first\nlast\n")
    assert not matches("first\nlast", "first\nother\nlast\n")
    assert not matches("a.c", "abc\n")
