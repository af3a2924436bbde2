"""The target of the lines of the audit log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy.auditing.log import line_of

_PIECES = (
    *(
        "m",
        " ",
        '"',
        "\\",
        "}",
        "{",
        ",",
        ":",
        "\n",
        "\r",
        "\t",
        "\0",
        "\x1b[2J",
        "\x7f",
        "\x85",
        "\u2028",
        "\u2029",
        "\u202e",
        "\u2066",
    ),
    *("\ud800", "\udfff", "ä", "😀", '"}\n{"audit":"done"', "\\n", "\\u000a"),
)
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _text(chance: Chance) -> str:
    return "".join(chance.choice(_PIECES) for _ in range(chance.randrange(6)))


def _value(chance: Chance, depth: int = 2) -> object:
    kind = chance.randrange(6 if depth else 4)
    if kind < 2:
        return _text(chance)
    if kind == 4:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(3))]
    if kind == 5:
        return {_text(chance): _value(chance, depth - 1) for _ in range(chance.randrange(3))}
    return chance.randrange(2**40) if kind == 2 else chance.choice((True, False))


def run_lines(write: Callable[[Mapping[str, object]], str], chance: Chance) -> int:
    """Some lines behind each other, as a reader sees them."""
    wanted = []
    text = ""
    for _ in chance.rounds((1, 3, 6)):
        members = {name: _value(chance) for name in ("audit", "model", "error", "details")} | {"ms": chance.randrange(9)}
        text += write(members)
        given = {name: value for name, value in members.items() if value or name == "ms"}
        wanted.append(json.loads(json.dumps(given)))  # halves of a character that stand together are one
        chance.took("hostile" if _UNSAFE.search(json.dumps(members, ensure_ascii=False)) else "plain")
    lines = text.split("\n")
    if lines.pop() or any(_UNSAFE.search(line) for line in lines):
        raise Violation(f"{text!r} moves a terminal, or does not end with its last line")
    found = [json.loads(line) for line in lines]
    if found != wanted:
        raise Violation(f"{wanted} became {found}")
    return len(wanted)


def _lines(chance: Chance) -> int:
    return run_lines(line_of, chance)


def _canary(chance: Chance) -> int:
    """Wrong on purpose: the texts are written as they are."""
    return run_lines(
        lambda members: json.dumps({k: v for k, v in members.items() if v or k == "ms"}, ensure_ascii=False) + "\n", chance
    )


_INVARIANT = (
    "each line of the audit log is one line of plain text and one JSON object, which says what was given, whatever that is"
)

LINES = Target(name="audit_lines", invariant=_INVARIANT, run=_lines, smoke_examples=300, rules=("hostile", "plain"))
CANARY = Target(name="audit_lines_canary", invariant=_INVARIANT, run=_canary, smoke_examples=100, must_fail=True)
