"""Reads the documentation: the fenced blocks of a page, with what the comment in front of each says about it.

A block's language says what it is, and an HTML comment on the line before the fence says what to do with it:

    ```sh               run: commands, to be pasted as they are; a following block `<!-- prints -->` is what they print, without
                        one they print nothing
    ```python           run: a script; a following block `<!-- prints -->` is what it prints
    <!-- file: P -->    the block is the whole file P
    <!-- part of: P --> the block is in the file P, line by line
    <!-- write: P -->   the reader is asked to write the block into the file P
    <!-- config: N -->  the block is the configuration of a model N, and is sound
    <!-- exit: N -->    the last command of the block ends with status N instead of 0
    <!-- within: N s --> the last command of the block prints this within N seconds, and is repeated until then
    <!-- prints -->     what the block before it prints
    <!-- in the background --> the command serves until the reader stops it
    <!-- not run: W --> shown only, because of W

`<!-- stop -->` on a line of its own: here the reader stops the server, or what was started last in the background (Ctrl-C).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]

_COMMENT = re.compile(r"<!-- (file|part of|write|config|exit|within|prints|not run|stop|in the background)(?:: (.*?))? -->")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A fenced block. `line` is that of its fence; `notes` what the comment in front of it says; `language` "stop" is the
    place where a server is stopped."""

    language: str
    text: str
    line: int
    notes: dict[str, str] = {}


def pages(*folders: str) -> list[Path]:
    """The Markdown pages directly in these folders of the repository, sorted."""
    return sorted(page for folder in folders for page in (ROOT / folder).glob("*.md"))


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page in order. Raises ValueError for a fence that is not closed or a comment without a block."""
    notes: dict[str, str] = {}
    fence: tuple[str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if fence is not None:
            if line.strip() == "```":
                yield Block(language=fence[0], text="\n".join(inside), line=fence[1], notes=notes)
                fence, inside, notes = None, [], {}
            else:
                inside.append(line)
        elif line.startswith("```"):
            fence = line.removeprefix("```").strip(), number
        elif found := _COMMENT.fullmatch(line):
            if found[1] == "stop":
                yield Block(language="stop", text="", line=number)
            else:
                notes = {**notes, found[1]: found[2] or ""}
        elif line.strip() and notes:
            raise ValueError(f"{page}:{number}: a comment {notes} without a block below it")
    if fence is not None:
        raise ValueError(f"{page}:{fence[1]}: the block has no end")


def commands(block: Block) -> list[str]:
    """The commands of a shell block, as a shell would read them: one goes on in the next line after a backslash, a pipe and
    inside quotes. Raises ValueError for a block that ends inside one, and for a prompt, which cannot be pasted."""
    found: list[str] = []
    begun = ""
    for line in block.text.splitlines():
        if not begun and line.startswith(("$ ", "> ")):
            raise ValueError(f"line {block.line}: a shell block that begins with a prompt cannot be pasted: {line!r}")
        if not begun and (not line.strip() or line.startswith("#")):
            continue
        begun = f"{begun}\n{line}" if begun else line
        if not _goes_on(begun):
            found.append(begun)
            begun = ""
    if begun:
        raise ValueError(f"line {block.line}: the command has no end: {begun!r}")
    return found


def _goes_on(command: str) -> bool:
    if command.endswith("\\"):
        return True
    asked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return "unexpected end of file" in asked.stderr or "unexpected EOF" in asked.stderr


def matches(shown: str, printed: str) -> bool:
    """Returns True if `printed` is what the page shows. `...` stands for any text, on a line of its own for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", ".*?") + r" *\n"
        for line in shown.splitlines()
    )
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None
