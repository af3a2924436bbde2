"""The calls of tools in the text of a model, read while it comes.

    text ──sign──> between calls ──head──> arguments ──> rest of the call ──> between calls ...
      ^                 |
      └──── no call ────┘

A call is reported when its name is certain, and its arguments as they come. What may still become a call, or a sign, is held
back; what turns out to be neither is text. Each decision follows from the text alone, never from where it was cut: however a text
is divided into pieces, the text, the names and the arguments are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from tpy import limits


class CallBegun(msgspec.Struct, frozen=True):
    """A call begins: what follows are its arguments."""

    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of the arguments of the latest call, which are JSON."""

    text: str


Found = str | CallBegun | ToolCallArguments
"""A piece of the answer; `str` is text."""


class CallReader(Protocol):
    """Reads one answer."""

    def add(self, text: str) -> list[Found]:
        """Take more of the answer. Returns what is certain with it."""
        ...

    def end(self) -> list[Found]:
        """The answer is complete. Returns the rest."""
        ...


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which a family of models writes calls. `signs`: calls begin there, anywhere in the text. `first`: the same, but
    only where the text begins. `between`: what may stand before, between and after calls, besides the signs. `named`: matches
    what stands between `before_name` and the arguments, in forms whose calls are not JSON objects of a name and arguments. `end`:
    nothing behind it counts. `has_special_tokens`: the signs are tokens that engines leave out of texts unless they are asked not
    to."""

    signs: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    before_name: str = ""
    named: str = ""
    end: str = ""
    has_special_tokens: bool = False


_DEEPSEEK_CALL: Final = "<｜tool▁call▁begin｜>"
_DEEPSEEK_NAME: Final = "<｜tool▁sep｜>"

FORMS: Final[Mapping[str, CallForm]] = {
    "llama3": CallForm(signs=("<|python_tag|>",), first=("{",), between=(";",), end="assistant\n\n"),
    "mistral": CallForm(
        signs=("[TOOL_CALLS]",),
        first=("[",),
        between=("[", "]", ","),
        before_name="[TOOL_CALLS]",
        named=r"(?P<name>[\w.\-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*",
        has_special_tokens=True,
    ),
    "hermes": CallForm(signs=("<tool_call>",), between=("</tool_call>",), has_special_tokens=True),
    "granite": CallForm(
        signs=("<|tool_call|>", "<tool_call>"),
        first=("[",),
        between=("</tool_call>", "[", "]", ","),
        has_special_tokens=True,
    ),
    "deepseek": CallForm(
        signs=("<｜tool▁calls▁begin｜>",),
        between=(_DEEPSEEK_CALL, "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"),
        before_name=_DEEPSEEK_CALL,
        named=rf"(?:function{_DEEPSEEK_NAME}(?P<typed>[^\n]+)\n```json\s*|(?P<name>[^\n<]+){_DEEPSEEK_NAME}\s*)",
        has_special_tokens=True,
    ),
}
"""By the names of their parsers."""

LIST: Final = CallForm(first=("[",), between=("[", "]", ","))
"""The form that a schema asks for: a list of objects of a name and arguments, and nothing else."""

_HEAD_CHARACTERS_MAX: Final = 1024
"""Of a call, up to where its arguments begin: names have at most 64. A form in which the name comes last is read when it is
whole."""
_HEAD: Final = re.compile(
    r'\{\s{0,64}"name"\s{0,64}:\s{0,64}"([^"\\]{1,512})"\s{0,64},\s{0,64}"(?:arguments|parameters)"\s{0,64}:\s{0,64}(?=\{)'
)
_PIECE_CHARACTERS: Final = 4096
_STRUCTURE: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


class _Extent:
    """Finds the end of a JSON object or array in a text that comes in pieces. `depth` of the brackets that are open already."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """Read on from `at`. Returns where it ends, -1 when it goes on behind the text."""
        if self._escaped and at < len(text):
            at, self._escaped = at + 1, False
        for match in _STRUCTURE.finditer(text, at):
            found = match[0]
            if found[0] == "\\":
                self._escaped = len(found) == 1
            elif found == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if found in "{[" else -1
                if not self._depth:
                    return match.end()
        return -1


class FormReader:
    """A CallReader for a form."""

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._named = re.compile(form.named) if form.named else None
        self._tokens = sorted((*form.signs, *form.between), key=len, reverse=True)
        self._gap = _gap_of(self._tokens)
        self._coming = (*self._tokens, *((form.end,) if form.end else ()))
        self._state: Callable[[], bool] = self._beginning if form.first else self._text
        self._found: list[Found] = []
        self._buffer = ""
        self._at = 0
        """The place in the buffer up to which it has been read."""
        self._from: int | None = None
        """The place from which it is text again if no call comes; None right behind a call."""
        self._before_name = False
        """The latest sign may be followed by the name of a call."""
        self._start = 0
        """The place where the object begins that may be a call."""
        self._may_have_head = True
        self._extent = _Extent()
        self._has_tail = False
        """The arguments are part of an object, whose rest follows them."""

    def add(self, text: str) -> list[Found]:
        """See CallReader."""
        # In pieces, since each step cuts the front off the buffer: of one long text all of it would be copied again and again.
        for at in range(0, len(text), _PIECE_CHARACTERS):
            self._buffer += text[at : at + _PIECE_CHARACTERS]
            while self._state():
                pass
        found, self._found = self._found, []
        return found

    def end(self) -> list[Found]:
        """See CallReader."""
        rest = ""
        if self._state in (self._beginning, self._text):
            rest = self._buffer
        elif self._state in (self._between, self._object):
            begin = self._at if self._state == self._between else self._start
            rest = self._buffer[begin if self._from is None else self._from :]
        self._buffer, self._at = "", 0
        return [rest] if rest else []

    # States: each reads on in the buffer, and returns False when it needs more of it.

    def _beginning(self) -> bool:
        """Nothing but white space has come."""
        text = self._buffer.lstrip()
        space = len(self._buffer) - len(text)
        if space > _HEAD_CHARACTERS_MAX:
            self._state = self._text
            return True
        if not text or any(sign.startswith(text) and sign != text for sign in self._form.first):
            return False
        if text.startswith(self._form.first):
            self._from, self._at, self._state = 0, space, self._between
        else:
            self._state = self._text
        return True

    def _text(self) -> bool:
        buffer, signs = self._buffer, self._form.signs
        found = min((at for at in (buffer.find(sign) for sign in signs) if at >= 0), default=-1)
        if found < 0:
            free = min((_free(buffer, sign) for sign in signs), default=len(buffer))
            self._add_text(buffer[:free])
            self._buffer = buffer[free:]
            return False
        self._add_text(buffer[:found])
        self._buffer = buffer[found:]
        self._from, self._at, self._state = 0, 0, self._between
        return True

    def _between(self) -> bool:
        """Before a call, or behind one."""
        buffer = self._buffer
        gap = self._gap.match(buffer, self._at)
        if gap is not None:
            self._before_name = self._before_name and not gap[0].strip()
            self._at = gap.end()
        at = self._at
        if self._from is not None and at - self._from > limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX:
            return self._no_call(at)
        left = len(buffer) - at
        if not left or any(len(token) > left and token.startswith(buffer[at:]) for token in self._coming):
            if self._from is None:
                self._buffer, self._at = buffer[at:], 0
            return False
        if self._form.end and buffer.startswith(self._form.end, at) and self._from is None:
            self._buffer, self._state = "", self._over
            return True
        for token in self._tokens:
            if buffer.startswith(token, at):
                if self._from is None and token in self._form.signs:
                    self._from = at
                self._before_name = token == self._form.before_name
                self._at += len(token)
                return True
        if buffer[at] == "{":
            self._start, self._may_have_head, self._extent, self._state = at, True, _Extent(), self._object
            return True
        if self._named is not None and self._before_name:
            return self._name(self._named)
        return self._no_call(at)

    def _name(self, named: re.Pattern[str]) -> bool:
        """A name, in front of its arguments."""
        start = self._at
        brace = self._buffer.find("{", start, start + _HEAD_CHARACTERS_MAX)
        if brace < 0 and len(self._buffer) < start + _HEAD_CHARACTERS_MAX:
            return False
        match = named.fullmatch(self._buffer, start, brace) if brace >= 0 else None
        if match is None:
            return self._no_call(start)
        self._before_name = False
        self._begin((match.groupdict().get("typed") or match["name"]).strip(), brace, has_tail=False)
        return True

    def _object(self) -> bool:
        """In an object that may be a call."""
        buffer, start = self._buffer, self._start
        if self._may_have_head:
            head = _HEAD.match(buffer, start)
            if head is not None and head[1].isprintable():  # half of a surrogate pair is not
                self._begin(head[1], head.end(), has_tail=True)
                return True
            self._may_have_head = head is None and len(buffer) - start <= 2 * _HEAD_CHARACTERS_MAX
        end = self._extent.feed(buffer, self._at)
        latest = start + limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX
        if (end if end >= 0 else len(buffer)) > latest:
            return self._no_call(latest)
        if end < 0:
            self._at = len(buffer)
            return False
        call = _call(buffer[start:end])
        if call is None:
            return self._no_call(end)
        self._found += (CallBegun(call[0]), ToolCallArguments(call[1]))
        self._behind_call(end)
        return True

    def _arguments(self) -> bool:
        end = self._extent.feed(self._buffer, 0)
        arguments, self._buffer = (self._buffer, "") if end < 0 else (self._buffer[:end], self._buffer[end:])
        if arguments:
            self._found.append(ToolCallArguments(arguments))
        if end < 0:
            return False
        self._at = 0
        self._from = None
        self._state = self._tail if self._has_tail else self._between
        return True

    def _tail(self) -> bool:
        """Behind the arguments in a call that is an object: its end, or further members, which mean nothing."""
        text = self._buffer.lstrip()
        self._buffer = text
        if not text:
            return False
        if text[0] == ",":
            self._extent, self._state = _Extent(1), self._members
        else:  # models forget brackets
            self._behind_call(1 if text[0] == "}" else 0)
        return True

    def _members(self) -> bool:
        end = self._extent.feed(self._buffer, 0)
        if end < 0:
            self._buffer = ""
            return False
        self._behind_call(end)
        return True

    def _over(self) -> bool:
        self._buffer = ""
        return False

    # Steps

    def _begin(self, name: str, arguments_at: int, *, has_tail: bool) -> None:
        self._found.append(CallBegun(name))
        self._buffer = self._buffer[arguments_at:]
        self._has_tail, self._extent, self._state = has_tail, _Extent(), self._arguments

    def _behind_call(self, at: int) -> None:
        self._buffer = self._buffer[at:]
        self._at, self._from, self._before_name, self._state = 0, None, False, self._between

    def _no_call(self, end: int) -> bool:
        """Everything before `end` is text; what separates calls is dropped behind one."""
        begin = self._from
        if begin is None:
            begin = self._start if self._state == self._object else end
        self._add_text(self._buffer[begin:end])
        self._buffer, self._at, self._state = self._buffer[end:], 0, self._text
        return True

    def _add_text(self, text: str) -> None:
        if text:
            self._found.append(text)


class OneCall:
    """A CallReader for an answer that a schema makes the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_begun = False

    def add(self, text: str) -> list[Found]:
        """See CallReader."""
        if not text:
            return []
        begun: list[Found] = [] if self._has_begun else [CallBegun(self._name)]
        self._has_begun = True
        return [*begun, ToolCallArguments(text)]

    def end(self) -> list[Found]:
        """See CallReader."""
        return []


class NoCalls:
    """A CallReader for text."""

    def add(self, text: str) -> list[Found]:
        """See CallReader."""
        return [text] if text else []

    def end(self) -> list[Found]:
        """See CallReader."""
        return []


def _gap_of(tokens: list[str]) -> re.Pattern[str]:
    """White space, and tokens of one character where no longer one can begin."""
    parts = [r"\s"]
    for token in tokens:
        if len(token) == 1:
            seconds = "".join(re.escape(other[1]) for other in tokens if other.startswith(token) and len(other) > 1)
            parts.append(re.escape(token) + (f"(?=[^{seconds}])" if seconds else ""))
    return re.compile(f"(?:{'|'.join(parts)})*")


def _free(text: str, sign: str) -> int:
    """The number of characters before what may become the sign at the end."""
    longest = min(len(sign) - 1, len(text))
    return next((len(text) - size for size in range(longest, 0, -1) if sign.startswith(text[-size:])), len(text))


def _call(text: str) -> tuple[str, str] | None:
    """The name and the arguments of a call that is a whole object; None if it is not a call."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name: Any = found.get("name")
    arguments: Any = found.get("arguments", found.get("parameters"))
    if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
        return None
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return (name, written) if _is_unicode(name + written) else None


def _is_unicode(text: str) -> bool:
    """Returns False for half of a surrogate pair, which UTF-8 cannot say."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
