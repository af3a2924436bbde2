"""Tokens of protobuf text format, with their places.

Problems do not stop it: what cannot be read becomes a token of kind INVALID that says why.
"""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from tpy.config.problem import Location


class TokenKind(enum.Enum):
    """The kind of a token."""

    NAME = enum.auto()
    NUMBER = enum.auto()
    STRING = enum.auto()
    PUNCTUATION = enum.auto()
    INVALID = enum.auto()
    END = enum.auto()


def shortened(text: str) -> str:
    """`text`, cut where it is too long for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."


_SHOWN_CHARACTERS_MAX: Final = 120


class Token(NamedTuple):
    """One token. `text` is as written (strings with their quotes); of an INVALID one, what is wrong with it."""

    kind: TokenKind
    text: str
    place: Location

    def is_punctuation(self, characters: str) -> bool:
        """Returns True if this is one of these punctuation characters."""
        return self.kind is TokenKind.PUNCTUATION and self.text in characters

    @property
    def short(self) -> str:
        """`text`, cut where it is too long for a message."""
        return shortened(self.text)

    def describe(self) -> str:
        """The token as a message names it."""
        return "the end of the file" if self.kind is TokenKind.END else f"'{self.short}'"


_PATTERN: Final = re.compile(
    r"""
      (?P<space>[ \t\r\f\v\n]+ | \#[^\n]*)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>[+-]?(?:[0-9]|\.[0-9])[0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9]+[fF]?)? | -[A-Za-z]+)
    | (?P<string>"(?:[^"\n\\]|\\.)*" | '(?:[^'\n\\]|\\.)*')
    | (?P<open>["'][^\n]*)
    | (?P<punctuation>[{}<>\[\]:,;])
    | (?P<other>.)
    """,
    re.VERBOSE,
)


def tokenize(text: str) -> Iterator[Token]:
    """All tokens of `text`, then for ever END."""
    line = 1
    line_start = 0
    for match in _PATTERN.finditer(text):
        place = Location(line, match.start() - line_start + 1)
        word = match.group()
        match match.lastgroup:
            case "space":
                breaks = word.count("\n")
                if breaks:
                    line += breaks
                    line_start = match.start() + word.rindex("\n") + 1
            case "name":
                yield Token(TokenKind.NAME, word, place)
            case "number":
                yield Token(TokenKind.NUMBER, word, place)
            case "string":
                yield Token(TokenKind.STRING, word, place)
            case "punctuation":
                yield Token(TokenKind.PUNCTUATION, word, place)
            case "open":
                yield Token(TokenKind.INVALID, "string without its closing quote on the same line", place)
            case _:
                yield Token(TokenKind.INVALID, f"unexpected character {word!r}", place)
    end = Token(TokenKind.END, "", Location(line, len(text) - line_start + 1))
    while True:
        yield end


class TokenStream:
    """Tokens one after another, with as much look-ahead as is asked for."""

    def __init__(self, text: str) -> None:
        self._tokens = tokenize(text)
        self._ahead: deque[Token] = deque()

    def peek(self, distance: int = 0) -> Token:
        """A coming token, without taking it; END for ever after the last."""
        while len(self._ahead) <= distance:
            self._ahead.append(next(self._tokens))
        return self._ahead[distance]

    def take(self) -> Token:
        """The next token."""
        return self._ahead.popleft() if self._ahead else next(self._tokens)

    def take_if(self, characters: str) -> Token | None:
        """The next token if it is one of these punctuation characters."""
        return self.take() if self.peek().is_punctuation(characters) else None
