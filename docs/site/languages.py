"""The two languages of the site: a page's switch leads to its counterpart, and Chinese pages have Chinese words around them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

FOLDER = "zh/"

HEADER = re.compile(r"\A<!-- translation of: (?P<source>\S+), fingerprint: \w+ -->\n")
"""The first line of a Chinese page (`docs/zh/translations.py`)."""

WORDS = {
    "Skip to content": "跳到正文",
    "Select language": "选择语言",
    "Search": "搜索",
    "Table of contents": "目录",
    "Back to top": "回到顶部",
    "Previous": "上一页",
    "Next": "下一页",
}
"""The theme's words that are in the page, not in its code."""

_WORD = re.compile(rf'(="|^\s+)({"|".join(WORDS)})(?=[:"]|\s*$)', re.MULTILINE)


def counterparts(docs: Path) -> dict[str, str]:
    """The page in the other language, by the place of a page below `docs`. The start pages are each other's already."""
    found = {}
    for page in sorted((docs / FOLDER).glob("*.md")):
        header = HEADER.match(page.read_text(encoding="utf-8"))
        if header is not None and header["source"].startswith("docs/"):
            source, translation = header["source"].removeprefix("docs/"), FOLDER + page.name
            found[source], found[translation] = translation, source
    return found


def in_its_language(html: str, place: str, counterpart: str) -> str:
    """The page at `place`, whose counterpart, "" for none, its switch leads to."""
    is_chinese = place.startswith(FOLDER)
    if counterpart:
        for language, target in (("zh" if is_chinese else "en", place), ("en" if is_chinese else "zh", counterpart)):
            link = posixpath.relpath(target, posixpath.dirname(place) or ".").removesuffix(".md") + ".html"
            html = re.sub(rf'href="[^"]*"(?= hreflang="{language}")', f'href="{link}"', html)
    if is_chinese:
        html = html.replace('<html lang="en"', '<html lang="zh-Hans"', 1)
        html = _WORD.sub(lambda found: found[1] + WORDS[found[2]], html)
    return html
