"""Reads the documentation: the fenced blocks of a page, with what the comment in front of each says about it.

A block's language says what it is, and an HTML comment on the line before the fence says what to do with it:

    ```console          run: each `$ ` line is a command, the lines below it are what it prints
    ```python           run: a script; a following block `<!-- prints -->` is what it prints
    <!-- file: P -->    the block is the whole file P
    <!-- part of: P --> the block is in the file P, line by line
    <!-- write: P -->   the reader is asked to write the block into the file P
    <!-- config: N -->  the block is the configuration of a model N, and is sound
    <!-- exit: N -->    the last command of the block ends with status N instead of 0
    <!-- within: N s --> the last command of the block prints this within N seconds, and is repeated until then
    <!-- prints -->     what the python block before it prints
    <!-- not run: W --> shown only, because of W

`<!-- stop -->` on a line of its own: here the reader stops the server (Ctrl-C).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]

_COMMENT = re.compile(r"<!-- (file|part of|write|config|exit|within|prints|not run|stop)(?:: (.*?))? -->")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A fenced block. `line` is that of its fence; `notes` what the comment in front of it says; `language` "stop" is the
    place where a server is stopped."""

    language: str
    text: str
    line: int
    notes: dict[str, str] = {}


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a console block, and what the page says that it prints."""

    text: str
    prints: str


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


def commands(block: Block) -> list[Command]:
    """The commands of a console block. A command goes on in the next line after a backslash, or where that begins with `> `."""
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(text=line[2:], prints=""))
            continue
        if not found:
            raise ValueError(f"line {block.line}: a console block begins with `$ `, not with {line!r}")
        last = found[-1]
        if not last.prints and (last.text.endswith("\\") or line.startswith("> ")):
            found[-1] = Command(text=f"{last.text}\n{line.removeprefix('> ')}", prints="")
        else:
            found[-1] = Command(text=last.text, prints=f"{last.prints}{line}\n")
    return found


def matches(shown: str, printed: str) -> bool:
    """Returns True if `printed` is what the page shows. `...` stands for any text, on a line of its own for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", ".*?") + r" *\n"
        for line in shown.splitlines()
    )
    text = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, text) is not None
