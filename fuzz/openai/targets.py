"""The calls of tools in a text: however it is cut into pieces, and whatever it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy_platforms.openai.core.tool_calls import (
    FORMS,
    LIST,
    CallBegun,
    CallForm,
    CallReader,
    FormReader,
    Found,
    ToolCallArguments,
)

INVARIANT = (
    "text, names and arguments are the same however an answer is cut; calls that were written come back; a text without calls "
    "comes back as it was"
)

Calls = list[tuple[str, str]]

_FORMS = {**FORMS, "list": LIST}
_WORDS = (
    "It is ",
    "sunny",
    " ",
    "\n",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ",",
    ";",
    "a",
    "é",
    "assistant\n\n",
    '{"a": 1}',
    '{"name": "x"',
)
_NAMES = ("weather", "get_time", "a", "ns.tool-2")
_VALUES: tuple[object, ...] = (
    "Bern",
    'a "quote" \\',
    "}{][",
    "<tool_call>",
    "[TOOL_CALLS]",
    "ü\n",
    3,
    None,
    True,
    [1, {"b": "]"}],
    {},
)


def run(chance: Chance) -> int:
    """One answer; its number of pieces."""
    return _try(chance, FormReader)


def run_canary(chance: Chance) -> int:
    """The same with a reader that forgets what a piece began."""
    return _try(chance, _Forgetful)


class _Forgetful:
    def __init__(self, form: CallForm) -> None:
        self._form = form

    def add(self, text: str) -> list[Found]:
        reader = FormReader(self._form)
        return [*reader.add(text), *reader.end()]

    def end(self) -> list[Found]:
        return []


def _try(chance: Chance, kind: Callable[[CallForm], CallReader]) -> int:
    name = chance.choice(sorted(_FORMS))
    form = _FORMS[name]
    if chance.random() < 0.5:
        chance.took("calls")
        whole, expected = _written(chance, name)
    else:
        chance.took("anything")
        parts = (
            *_WORDS,
            *form.signs,
            *form.first,
            *form.between,
            form.end,
            form.before_name,
            "weather[ARGS]{",
            "function<｜tool▁sep｜>f\n```json\n{",
        )
        whole, expected = "".join(chance.choice(parts) for _ in chance.rounds((3, 8, 20))), None
    pieces = _cut(chance, whole)
    found = read(kind(form), pieces)
    at_once = read(FormReader(form), [whole])
    if found != at_once:
        raise Violation(f"{name}: {pieces!r} gives {found!r}, at once {at_once!r}")
    text, calls = found
    if expected is not None:
        chance.took("found")
        if [(call, json.loads(arguments)) for call, arguments in calls] != expected:
            raise Violation(f"{name}: {whole!r} gives {calls!r}, expected {expected!r}")
    if not calls and text != whole:
        raise Violation(f"{name}: {whole!r} has no calls, but its text is {text!r}")
    return len(pieces)


def read(reader: CallReader, pieces: Sequence[str]) -> tuple[str, Calls]:
    """The text and the calls that a reader finds in pieces."""
    text, calls = "", Calls()
    for found in [*(each for piece in pieces for each in reader.add(piece)), *reader.end()]:
        match found:
            case CallBegun(name):
                calls.append((name, ""))
            case ToolCallArguments(more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
            case _:
                text += found
    return text, calls


def _cut(chance: Chance, whole: str) -> list[str]:
    pieces, at = [], 0
    while at < len(whole):
        size = chance.choice((1, 1, 2, 3, 7, 40))
        pieces.append(whole[at : at + size])
        at += size
    return pieces


def _written(chance: Chance, form: str) -> tuple[str, list[tuple[str, object]]]:
    """An answer with calls as a model of the family writes it, and the calls."""
    calls = [
        (chance.choice(_NAMES), {f"k{at}": chance.choice(_VALUES) for at in range(chance.randrange(4))})
        for _ in range(1 + chance.randrange(3))
    ]
    word = "parameters" if form in ("llama3", "list") or chance.random() < 0.2 else "arguments"
    objects = [_object(chance, name, word, arguments) for name, arguments in calls]
    before = chance.choice(("", "Let me see. ", "\n"))
    match form:
        case "llama3":
            text = chance.choice(("", "<|python_tag|>", "\n\n")) + chance.choice(("; ", ";", "\n")).join(objects)
            text += chance.choice(("", "assistant\n\nDone."))
        case "mistral" if chance.random() < 0.5:
            text = before + "".join(
                f"[TOOL_CALLS]{name}{chance.choice(('', '[ARGS]', '[CALL_ID]a1b2[ARGS]'))}{json.dumps(arguments)}"
                for name, arguments in calls
            )
        case "mistral":
            text = chance.choice((f"{before}[TOOL_CALLS]", f"{before}[TOOL_CALLS] ", "")) + f"[{', '.join(objects)}]"
        case "hermes":
            text = before + "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
        case "granite":
            text = chance.choice(("<|tool_call|>", "<tool_call>", "")) + f"[{', '.join(objects)}]"
        case "deepseek":
            text = before + _deepseek(chance, calls)
        case _:
            text = f"[{', '.join(objects)}]"
    return text, list(calls)


def _object(chance: Chance, name: str, word: str, arguments: object) -> str:
    """A call as JSON: its name first as a rule."""
    members: list[tuple[str, object]] = [("name", name), (word, arguments)]
    if chance.random() < 0.2:
        members.append(("id", "a}1"))
    if chance.random() < 0.2:
        members.reverse()
    indent = chance.choice((None, None, 2))
    return json.dumps(dict(members), ensure_ascii=chance.random() < 0.5, indent=indent)


def _deepseek(chance: Chance, calls: Sequence[tuple[str, object]]) -> str:
    typed = chance.random() < 0.5
    found = "<｜tool▁calls▁begin｜>"
    for name, arguments in calls:
        written = json.dumps(arguments)
        content = f"function<｜tool▁sep｜>{name}\n```json\n{written}\n```" if typed else f"{name}<｜tool▁sep｜>{written}"
        found += f"<｜tool▁call▁begin｜>{content}<｜tool▁call▁end｜>" + ("\n" if typed else "")
    return found + "<｜tool▁calls▁end｜>"


TOOL_CALLS = Target(
    name="openai_tool_calls", invariant=INVARIANT, run=run, smoke_examples=4000, rules=("calls", "anything", "found")
)
CANARY = Target(
    name="openai_tool_calls_canary",
    invariant="a reader that forgets what a piece began is found out",
    run=run_canary,
    smoke_examples=200,
    must_fail=True,
)
