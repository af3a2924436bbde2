"""The Chinese pages follow the English ones: `python docs/zh/translations.py` brings their code up to date, and says on each page
whose English text has changed since that it may be out of date. `--check` says what that would change. `--translated PAGE...`:
these were translated anew.

The first line of a page names its source and a fingerprint of the source's text without code. Code is the same in both languages.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent

NOTICE = "> **本页可能已过时**：英文原文在翻译之后有改动，请以[英文版]({source})为准。"

_HEADER = re.compile(r"<!-- translation of: (?P<source>\S+), fingerprint: (?P<fingerprint>\w+) -->\n")
_NOTICE = re.compile(rf"\n{re.escape(NOTICE.partition('{')[0])}[^\n]*\n")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def fingerprint(text: str) -> str:
    """Of an English page's text: its code may change without it."""
    words = " ".join(_CODE.sub("", text).split())
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def updated(page: Path, root: Path = ROOT, *, translated: bool = False) -> str:
    """The page as it should be. Raises ValueError for one that does not name its source, or has other code blocks."""
    text = page.read_text(encoding="utf-8")
    header = _HEADER.match(text)
    if header is None:
        raise ValueError(f"{page.name}: expected its first line to be <!-- translation of: FILE, fingerprint: ... -->")
    source = root / header["source"]
    original = source.read_text(encoding="utf-8")
    seen = fingerprint(original) if translated else header["fingerprint"]
    body = _NOTICE.sub("", text[header.end() :], count=1)
    is_behind = seen != fingerprint(original)
    code = _CODE.findall(original)
    if len(code) == len(_CODE.findall(body)):
        body = _CODE.sub(lambda _: code.pop(0), body)
    elif not is_behind:
        raise ValueError(f"{page.name}: {len(_CODE.findall(body))} code blocks, and {header['source']} has {len(code)}")
    if is_behind:
        title, _, rest = body.partition("\n")
        notice = NOTICE.format(source=os.path.relpath(source, page.parent))
        body = f"{title}\n\n{notice}\n{rest}"
    return f"<!-- translation of: {header['source']}, fingerprint: {seen} -->\n{body}"


def main() -> int:
    """The exit status: with --check 1 if a page is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument(
        "--translated", nargs="+", type=Path, default=[], metavar="PAGE", help="pages whose text was brought up to date"
    )
    arguments = parser.parse_args()
    translated = {each.resolve() for each in arguments.translated}
    code = 0
    for page in sorted(FOLDER.glob("*.md")):
        try:
            wanted = updated(page, translated=page.resolve() in translated)
        except (ValueError, OSError) as error:
            print(error)
            code = 1
            continue
        if wanted != page.read_text(encoding="utf-8"):
            if arguments.check:
                print(f"{page.name} is not as it should be: make docs, or translate it")
                code = 1
            else:
                page.write_text(wanted, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
