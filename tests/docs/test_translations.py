"""Chinese pages: their code is that of the English ones, and one whose English text has changed says so."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT


def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "docs" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


translations = _module("zh/translations.py")
languages = _module("site/languages.py")

ENGLISH = "# A page\n\nText.\n\n```sh\nmake serve\n```\n\nMore.\n"
CHINESE = "# 页面\n\n文字。\n\n```sh\n{code}\n```\n\n更多。\n"
NOTICE = translations.NOTICE.format(source="../page.md")


class Pair:
    """A page and its translation."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.source, self.page = folder / "page.md", folder / "zh" / "page.md"
        self.page.parent.mkdir()
        self.source.write_text(ENGLISH)
        seen = translations.fingerprint(ENGLISH)
        self.header = f"<!-- translation of: page.md, fingerprint: {seen} -->\n"
        self.page.write_text(self.header + CHINESE.format(code="make serve"))

    def update(self, *, translated: bool = False) -> str:
        """Bring the page up to date. Returns it without its first line."""
        self.page.write_text(translations.updated(self.page, self.root, translated=translated))
        return self.page.read_text().partition("\n")[2]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_what_is_up_to_date_stays(pair: Pair) -> None:
    before = pair.page.read_text()
    pair.update()
    assert pair.page.read_text() == before


def test_code_follows_by_itself(pair: Pair) -> None:
    pair.source.write_text(ENGLISH.replace("make serve", "make test"))
    assert pair.update() == CHINESE.format(code="make test")


def test_a_page_that_has_fallen_behind_says_so_until_it_is_translated(pair: Pair) -> None:
    pair.source.write_text(ENGLISH.replace("More.", "Much more."))
    behind = pair.update()
    assert behind == CHINESE.format(code="make serve").replace("# 页面\n", f"# 页面\n\n{NOTICE}\n")
    assert pair.update() == behind, "it says so once"
    assert pair.update(translated=True) == CHINESE.format(code="make serve")
    assert translations.fingerprint(pair.source.read_text()) in pair.page.read_text()


def test_a_page_with_other_blocks_of_code_is_refused(pair: Pair) -> None:
    pair.page.write_text(pair.header + "# 页面\n")
    with pytest.raises(ValueError, match=re.escape("page.md: 0 code blocks, and page.md has 1")):
        pair.update()
    pair.page.write_text("# 页面\n")
    with pytest.raises(ValueError, match="expected its first line to be"):
        pair.update()


def test_the_pages_that_a_beginner_needs_are_there() -> None:
    assert {page.name for page in (ROOT / "docs" / "zh").glob("*.md")} >= {
        *("README.md", "first-model.md", "model-configuration.md", "write-a-python-model.md"),
        *("move-from-triton.md", "serve-on-pai-eas.md", "errors.md"),
    }


def test_the_switch_of_the_site_leads_to_the_other_language() -> None:
    counterparts = languages.counterparts(ROOT / "docs")
    assert counterparts["how-to/move-from-triton.md"] == "zh/move-from-triton.md"
    assert counterparts["zh/move-from-triton.md"] == "how-to/move-from-triton.md"
    assert not {"zh/README.md", "README.md"} & counterparts.keys(), "the start pages are each other's"
    switch = '<html lang="en"><a href="../index.html" hreflang="en"><a href="index.html" hreflang="zh"> Previous\n'
    chinese = languages.in_its_language(switch, "zh/errors.md", "reference/errors.md")
    assert chinese == (
        '<html lang="zh-Hans"><a href="../reference/errors.html" hreflang="en"><a href="errors.html" hreflang="zh"> Previous\n'
    )
    english = languages.in_its_language(switch, "reference/errors.md", "zh/errors.md")
    assert 'href="../zh/errors.html" hreflang="zh"' in english
    assert 'lang="en"' in english


def test_the_words_of_the_theme_are_chinese_on_chinese_pages() -> None:
    page = '<label title="Search" aria-label="Previous: 错误">\n  Table of contents\n</label><p>Search the next page.</p>\n'
    assert languages.in_its_language(page, "index.md", "") == page
    assert languages.in_its_language(page, "zh/README.md", "") == (
        '<label title="搜索" aria-label="上一页: 错误">\n  目录\n</label><p>Search the next page.</p>\n'
    )
