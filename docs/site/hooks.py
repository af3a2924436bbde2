"""Hooks of the site's build: the navigation, pages from outside the folder docs, the switch between languages, and the check that
nothing is fetched.

The navigation is what the README.md of each folder lists; a heading above a part of the list makes it a group.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from languages import HEADER, counterparts, in_its_language
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[2]

FOLDERS = {
    "Tutorial": "tutorial",
    "How-to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Decisions": "adr",
    "中文": "zh",
}

OUTSIDE = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "LICENSE": "project/license.md",
    "changes/README.md": "project/changes.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "fuzz/README.md": "project/fuzzing.md",
}
"""Files of the repository that are pages of the site as well, and their place there."""

_SHIM = "https://unpkg.com/iframe-worker/shim"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_FETCHED = re.compile(rb"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Makes the navigation of the lists in the folders' README.md."""
    folders = [{title: listed(folder)} for title, folder in FOLDERS.items()]
    config.nav = [{"Home": "README.md"}, *folders, {"Project": list(OUTSIDE.values())}]
    return config


def listed(folder: str) -> list[Any]:
    """The pages that a folder's README.md links, in its order; those below a heading `##` are a group of that name."""
    top: list[Any] = [f"{folder}/README.md"]
    group, seen = top, set[str]()
    for line in (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            group = []
            top.append({line.removeprefix("## "): group})
        for name in re.findall(r"\]\(([\w.-]+\.md)\)", line):
            if name not in seen:
                seen.add(name)
                group.append(f"{folder}/{name}")
    return top


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of OUTSIDE."""
    for name, place in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".md"):
            text = f"# {name.capitalize()}\n\n```text\n{text}\n```\n"
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links that leave or enter the folder docs to their place in the site. The navigation has the title of a page that
    begins with it, so a translation's first line is left out."""
    markdown = HEADER.sub("", markdown)
    place = page.file.src_uri
    origin = next((name for name, each in OUTSIDE.items() if each == place), f"docs/{place}")

    def changed(found: re.Match[str]) -> str:
        target = found[1]
        if re.match(r"\w+:", target):
            return target
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        inside = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is None and (ROOT / path).is_file():  # a source file: it is copied
            inside = f"project/sources/{path}"
            if files.get_file_from_path(inside) is None:
                files.append(File.generated(config, inside, abs_src_path=str(ROOT / path)))
        return target if inside is None else posixpath.relpath(inside, posixpath.dirname(place) or ".")

    return _LINK.sub(changed, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Takes the script for pages that are opened as files from the site; leads from each language to the other."""
    output = output.replace(_SHIM, get_relative_url("site/worker-of-files.js", page.url))
    place = page.file.src_uri
    return in_its_language(output, place, counterparts(ROOT / "docs").get(place, ""))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page of addresses that do not exist."""
    return output_content.replace(_SHIM, "/site/worker-of-files.js")


def on_post_build(config: MkDocsConfig) -> None:
    """Fails if a page fetches anything from elsewhere, as the site works without a network, or if the search cannot find words
    of Chinese pages."""
    fetched = {
        f"{page.relative_to(config.site_dir)}: {address.decode()}"
        for page in Path(config.site_dir).rglob("*.html")
        for address in _FETCHED.findall(page.read_bytes())
    }
    if fetched:
        raise PluginError("a page fetches what is not in the site:\n" + "\n".join(sorted(fetched)))
    if r"\u200b" not in Path(config.site_dir, "search", "search_index.json").read_text(encoding="utf-8"):
        raise PluginError("Chinese pages are not cut into words for the search: install jieba (make site does)")
