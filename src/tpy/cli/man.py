"""Manual pages of the commands, made of what the reference page is made of: `python -m tpy.cli.man DIRECTORY`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from tpy import __version__
from tpy.cli.examples import EXAMPLES
from tpy.cli.main import cli
from tpy.cli.reference import EXIT_CODES, sentences


def pages() -> dict[str, str]:
    """The pages by file name: `tpy.1`, and one for each command."""
    overview = [f".TP\n\\fBtpy\\-{_roff(name)}\\fR(1)\n{_roff(sentences(cli.all_commands()[name])[0])}" for name in EXAMPLES]
    head = _head("tpy", "a Triton-compatible inference server")
    found = {"tpy.1": "\n".join([*head, ".SH COMMANDS", *overview, ".SH EXIT STATUS", *_exit_codes()]) + "\n"}
    for name in EXAMPLES:
        found[f"tpy-{name}.1"] = "\n".join(_page(cli.all_commands()[name])) + "\n"
    return found


def _page(command: click.Command) -> Iterator[str]:
    name = command.name or ""
    first, others = sentences(command)
    context = click.Context(command, info_name=f"tpy {name}")
    yield from _head(f"tpy-{name}", first.rstrip("."))
    yield f".SH SYNOPSIS\n\\fBtpy {_roff(name)}\\fR {_roff(' '.join(command.collect_usage_pieces(context)))}"
    if others:
        yield f".SH DESCRIPTION\n{_roff(others)}"
    yield ".SH OPTIONS"
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            yield f".TP\n\\fB{_roff(record[0])}\\fR\n{_roff(record[1])}"
    yield ".SH EXAMPLES\n.nf"
    yield from map(_roff, EXAMPLES[name])
    yield ".fi\n.SH SEE ALSO\n\\fBtpy\\fR(1)"


def _head(name: str, about: str) -> list[str]:
    return [f'.TH {_roff(name.upper())} 1 "" "tpy {__version__}"', f".SH NAME\n{_roff(name)} \\- {_roff(about)}"]


def _exit_codes() -> Iterator[str]:
    for row in EXIT_CODES.splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) == 2 and cells[0][:1].isdigit():
            yield f".TP\n{_roff(cells[0])}\n{_roff(cells[1].replace('`', ''))}"


def _roff(text: str) -> str:
    """The text as roff takes it: dashes that can be copied, and no line that is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def write(folder: Path) -> None:
    """Write all pages into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
