"""Reads config.pbtxt for its problems and for the places of its fields; the values are protobuf's own parser's to read.

Protobuf's parser stops at the first problem and knows only its place. This walk goes on after a problem, names the field, and
remembers where every field stands, for problems that are found later.
"""

from __future__ import annotations

from tpy import limits
from tpy.config.problem import Location, Problem, Source, entry
from tpy.config.schema import MODEL_CONFIG, Cardinality, EnumSchema, FieldSchema, MessageSchema, Scalar
from tpy.config.tokens import Token, TokenKind, TokenStream
from tpy.config.values import EXPECTED, did_you_mean, enum_fault, integer_of, scalar_fault, string_of

_CLOSING = {"{": "}", "<": ">", "[": "]"}


class _TooManyProblems(Exception):
    """There is no use in going on."""


class SyntaxWalk:
    """One pass over one text. `problems` and `locations` hold what was found, also when the text is broken."""

    def __init__(self, text: str, *, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.locations: dict[str, Location] = {}
        self._tokens = TokenStream(text)

    def run(self) -> None:
        """Read the whole text as a ModelConfig."""
        self.locations[""] = Location(1, 1)
        try:
            self._message(MODEL_CONFIG, "", closing="")
        except _TooManyProblems:
            return

    def source(self) -> Source:
        """The file and the places of its fields."""
        return Source(path=self.path, locations=self.locations)

    def _problem(self, place: Location, field: str, message: str, *, expected: str = "") -> None:
        self.problems.append(
            Problem(path=self.path, line=place.line, column=place.column, field=_shown(field), message=message, expected=expected)
        )
        if len(self.problems) >= limits.CONFIG_PROBLEMS_MAX:
            raise _TooManyProblems

    def _message(self, schema: MessageSchema, path: str, *, closing: str) -> None:
        """Read fields up to and including `closing` ("" at the top, where the end of the text closes)."""
        seen: dict[str, Location] = {}
        counts: dict[str, int] = {}
        while not self._ended(path, closing, schema):
            token = self._tokens.take()
            if token.kind is not TokenKind.NAME:
                several = token.kind in (TokenKind.NUMBER, TokenKind.STRING)
                hint = "; several values need brackets: [ 1, 2 ]" if several else ""
                self._unexpected(token, path, expected=f"a field name{hint}")
                continue
            field = schema.fields.get(token.text)
            if field is None:
                known = did_you_mean(token.short, schema.fields)
                expected = "" if known else "one of " + ", ".join(schema.fields)
                message = f"{schema.name} has no field '{token.short}'{known}"
                self._problem(token.place, _join(path, token.short), message, expected=expected)
                self._skip_value()
            else:
                self._check_repetition(schema, field, token, seen, path)
                self._field(field, token, _join(path, field.name), counts)
            self._tokens.take_if(",;")

    def _ended(self, path: str, closing: str, schema: MessageSchema | None = None) -> bool:
        """Take the closing token if it is next; also true at the end of the text, which is a problem inside braces, and
        where a forgotten brace shows: at a field that only the whole configuration has, at the beginning of a line."""
        token = self._tokens.peek()
        if path and schema is not None and self._begins_at_top(token, schema):
            self._problem(token.place, path, f"'{token.text}' begins before {path} is closed", expected=f"'{closing}' before it")
            return True
        if token.kind is TokenKind.END:
            if closing:
                self._problem(token.place, path, f"the file ends before the '{closing}' of {path}", expected=f"'{closing}'")
            return True
        if closing and token.is_punctuation("}>"):
            self._tokens.take()
            if token.text != closing:
                self._problem(token.place, path, f"'{token.text}' closes {path}", expected=f"'{closing}'")
            return True
        return False

    def _begins_at_top(self, token: Token, schema: MessageSchema) -> bool:
        return (
            token.place.column == 1
            and token.kind is TokenKind.NAME
            and token.text not in schema.fields
            and token.text in MODEL_CONFIG.fields
            and self._tokens.peek(1).is_punctuation("{<[:")
        )

    def _unexpected(self, token: Token, path: str, *, expected: str) -> None:
        """Report a token that was taken and cannot stand there; what it opens is stepped over."""
        if token.kind is TokenKind.INVALID:
            self._problem(token.place, path, token.text)
        else:
            self._problem(token.place, path, f"unexpected {token.describe()}", expected=expected)
        if token.is_punctuation("{<["):
            self._skip_to_close()

    def _check_repetition(
        self, schema: MessageSchema, field: FieldSchema, token: Token, seen: dict[str, Location], path: str
    ) -> None:
        """A singular field may be given once, and of a oneof one member."""
        if field.cardinality is not Cardinality.SINGULAR:
            return
        before = seen.get(field.name)
        rival = next((name for name in seen if field.oneof is not None and schema.fields[name].oneof == field.oneof), None)
        if before is not None:
            message = f"'{field.name}' is given more than once, first in line {before.line}"
            self._problem(token.place, _join(path, field.name), message)
        elif rival is not None:
            message = f"'{field.name}' cannot be given together with '{rival}' in line {seen[rival].line}"
            self._problem(token.place, _join(path, field.name), message)
        else:
            seen[field.name] = token.place

    def _field(self, field: FieldSchema, name: Token, path: str, counts: dict[str, int]) -> None:
        self.locations.setdefault(path, name.place)
        colon = self._tokens.take_if(":")
        after = self._tokens.peek()
        if colon is None and not (field.is_message and after.is_punctuation("{<[")):
            expected = "'{' or ':'" if field.is_message else "':'"
            self._problem(after.place, path, f"no ':' between '{field.name}' and {after.describe()}", expected=expected)
            if after.kind not in (TokenKind.NUMBER, TokenKind.STRING) and not after.is_punctuation("{<["):
                return
        if field.cardinality is Cardinality.SINGULAR:
            if after.is_punctuation("["):
                self._problem(after.place, path, f"'{field.name}' takes one value, not a list")
                self._skip_value()
            else:
                self._value(field.kind, path)
        elif after.is_punctuation("["):
            self._list(field, path, counts)
        else:
            self._numbered(field, path, counts, name.place)

    def _list(self, field: FieldSchema, path: str, counts: dict[str, int]) -> None:
        """Read `[a, b]`."""
        opening = self._tokens.take()
        if self._tokens.take_if("]"):
            return
        while True:
            self._numbered(field, path, counts, self._tokens.peek().place)
            if self._tokens.take_if("]"):
                return
            token = self._tokens.peek()
            if not self._tokens.take_if(","):
                message = f"unexpected {token.describe()} in the list that begins in line {opening.place.line}"
                self._problem(token.place, path, message, expected="',' or ']'")
                if token.kind is not TokenKind.NAME and not token.is_punctuation("}>"):
                    self._skip_to_close()  # else the ']' was forgotten: the enclosing message goes on here
                return

    def _numbered(self, field: FieldSchema, path: str, counts: dict[str, int], place: Location) -> None:
        """Read one element of a repeated field, or one entry of a map."""
        index = counts.get(field.name, 0)
        counts[field.name] = index + 1
        if field.cardinality is Cardinality.MAP:
            self._entry(field, path, index, place)
        else:
            self.locations.setdefault(f"{path}[{index}]", place)
            self._value(field.kind, f"{path}[{index}]")

    def _entry(self, field: FieldSchema, path: str, index: int, place: Location) -> None:
        """Read `{ key: ... value: ... }`."""
        opening = self._tokens.take_if("{<")
        if opening is None:
            token = self._tokens.peek()
            self._problem(token.place, path, f"{token.describe()} is not a map entry", expected="{ key: ... value: ... }")
            self._skip_value()
            return
        path = entry(path, self._key_ahead(index))
        self.locations.setdefault(path, place)
        seen: dict[str, Location] = {}
        while not self._ended(path, _CLOSING[opening.text]):
            name = self._tokens.take()
            if name.text not in ("key", "value"):
                self._problem(name.place, path, f"unexpected {name.describe()} in a map entry", expected="key and value")
                self._skip_value()
            elif name.text in seen:
                self._problem(name.place, path, f"'{name.text}' is given more than once in a map entry", expected="it once")
                self._skip_value()
            else:
                seen[name.text] = name.place
                kind = field.key if name.text == "key" and field.key is not None else field.kind
                colon = self._tokens.take_if(":")
                if colon is None and not isinstance(kind, MessageSchema):
                    self._problem(self._tokens.peek().place, path, f"no ':' after '{name.text}'", expected="':'")
                self._value(kind, path)
            self._tokens.take_if(",;")

    def _key_ahead(self, index: int) -> str | int:
        """The key of the entry whose brace was just taken, as paths name it; the entry's index when it has no key."""
        depth = 0
        distance = 0
        while depth >= 0:
            token = self._tokens.peek(distance)
            if token.kind is TokenKind.END:
                break
            if token.kind is TokenKind.NAME and token.text == "key" and depth == 0:
                value = self._tokens.peek(distance + 2)
                text = string_of(value) if value.kind is TokenKind.STRING else None
                if text is not None:
                    return text
                number = integer_of(value.text)
                return index if number is None else number
            depth += token.is_punctuation("{<[") - token.is_punctuation("}>]")
            distance += 1
        return index

    def _value(self, kind: Scalar | EnumSchema | MessageSchema, path: str) -> None:
        """Read one value."""
        token = self._tokens.peek()
        if isinstance(kind, MessageSchema):
            if token.is_punctuation("{<"):
                self._tokens.take()
                self._message(kind, path, closing=_CLOSING[token.text])
            else:
                self._problem(token.place, path, f"{token.describe()} is not a message", expected=f"'{{ ... }}', a {kind.name}")
                self._skip_value()
            return
        if token.kind is TokenKind.INVALID:
            self._unexpected(self._tokens.take(), path, expected="")
            return
        if token.kind is TokenKind.END or token.kind is TokenKind.PUNCTUATION:
            expected = "a value" if isinstance(kind, EnumSchema) else EXPECTED[kind]
            self._problem(token.place, path, f"no value before {token.describe()}", expected=expected)
            if token.is_punctuation("{<["):
                self._skip_value()
            return
        for token in self._take_scalar():
            fault = enum_fault(token, kind) if isinstance(kind, EnumSchema) else scalar_fault(token, kind)
            if fault:
                expected = "one of " + ", ".join(kind.by_name) if isinstance(kind, EnumSchema) else EXPECTED[kind]
                self._problem(token.place, path, fault, expected="" if "did you mean" in fault else expected)

    def _take_scalar(self) -> list[Token]:
        """Take one value without braces: one token, or adjacent string literals, which are one string."""
        tokens = [self._tokens.take()]
        while tokens[0].kind is TokenKind.STRING and self._tokens.peek().kind is TokenKind.STRING:
            tokens.append(self._tokens.take())
        return tokens

    def _skip_value(self) -> None:
        """Step over the value of a field that cannot be read."""
        self._tokens.take_if(":")
        if self._tokens.take_if("{<["):
            self._skip_to_close()
        elif self._tokens.peek().kind not in (TokenKind.END, TokenKind.PUNCTUATION):
            self._take_scalar()

    def _skip_to_close(self) -> None:
        """Step over everything up to the bracket that closes the one just taken."""
        depth = 1
        while depth > 0 and self._tokens.peek().kind is not TokenKind.END:
            token = self._tokens.take()
            depth += token.is_punctuation("{<[") - token.is_punctuation("}>]")


def _shown(field: str) -> str:
    """The path of a field as problems name it: a map's key in it may be as long as the file."""
    return field if len(field) <= _FIELD_CHARACTERS_MAX else f"{field[:_FIELD_CHARACTERS_MAX]}..."


_FIELD_CHARACTERS_MAX = 500


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
