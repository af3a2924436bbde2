"""Configurations drawn from the protobuf descriptor, and texts of them in every style that the text format has."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from fuzz.chance import Chance
from tpy._proto.pool import POOL
from tpy.config.schema import MODEL_CONFIG_CLASS

_DEPTH_MAX = 4
_TEXTS = ("", "a", "CPU", "ä\n", "it's", '"', "\\", "x" * 40, "\x7f\x01")
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.TYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.TYPE_UINT32: (0, 1, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**64 - 1),
}
_FRAGMENTS = (
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    ":",
    ",",
    ";",
    '"',
    "'",
    "#",
    "\n",
    "\\x",
    "\\777",
    "-",
    "1e999",
    "nan",
    "-inf",
    "0x",
    "09",
    "18446744073709551616",
    "TYPE_FP99",
    "name",
    "input {",
    "dims: [",
    "version_policy { latest {} all {} }",
    "parameters { key: 'a' value {",
    "\ud800",
    "\0",
    "[type.googleapis.com/x] {",
    "max_batch_size: 9",
)


def random_message(chance: Chance) -> Any:
    """A ModelConfig message: any fields, any values of their types."""
    message = MODEL_CONFIG_CLASS()
    _fill(chance, message, 0)
    return message


def _fill(chance: Chance, message: Any, depth: int) -> None:
    fields = list(message.DESCRIPTOR.fields)
    for field in chance.sample(fields, min(len(fields), chance.choice((0, 1, 2, 4)))):
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(chance, getattr(message, field.name), field, depth)
        elif field.is_repeated:
            for _ in range(chance.choice((0, 1, 1, 3))):
                if field.message_type is None:
                    getattr(message, field.name).append(_scalar(chance, field))
                elif depth < _DEPTH_MAX:
                    _fill(chance, getattr(message, field.name).add(), depth + 1)
        elif field.message_type is not None:
            if depth < _DEPTH_MAX:
                nested = getattr(message, field.name)
                nested.SetInParent()
                _fill(chance, nested, depth + 1)
        else:
            setattr(message, field.name, _scalar(chance, field))


def _fill_map(chance: Chance, container: Any, field: FieldDescriptor, depth: int) -> None:
    value = field.message_type.fields_by_name["value"]
    for _ in range(chance.choice((1, 1, 2))):
        key = _scalar(chance, field.message_type.fields_by_name["key"])
        if value.message_type is None:
            container[key] = _scalar(chance, value)
        else:
            container[key].SetInParent()
            if depth < _DEPTH_MAX:
                _fill(chance, container[key], depth + 1)


def _scalar(chance: Chance, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return chance.choice([value.number for value in field.enum_type.values])
    if field.type in _INTEGERS:
        return chance.choice(_INTEGERS[field.type])
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return chance.choice((0.0, 0.5, -3.0, 1e30, float("inf")))
    if field.type == FieldDescriptor.TYPE_BOOL:
        return chance.random() < 0.5
    return chance.choice(_TEXTS)


def random_text(chance: Chance, message: Any) -> str:
    """The message in one of the styles in which the text format can be written."""
    text: str = text_format.MessageToString(
        message,
        as_utf8=chance.random() < 0.5,
        as_one_line=chance.random() < 0.3,
        use_short_repeated_primitives=chance.random() < 0.5,
        pointy_brackets=chance.random() < 0.2,
        use_index_order=chance.random() < 0.5,
        descriptor_pool=POOL,
    )
    if chance.random() < 0.2:
        text = text.replace("\n", " # a remark }\r\n")
    return text


def spoiled(chance: Chance, text: str) -> str:
    """The text with a few places changed: characters and words gone, doubled, moved, or others put in."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randint(0, len(text))
        if chance.random() < 0.02:  # what takes long shows in what is long
            text = (
                text[:at] + chance.choice((*_FRAGMENTS, "1", "a", "\\", "[{", "1e")) * chance.choice((1000, 10_000)) + text[at:]
            )
        end = min(len(text), at + chance.choice((0, 1, 1, 5, 30)))
        rule = chance.randrange(4)
        if rule == 0:
            text = text[:at] + text[end:]
        elif rule == 1:
            text = text[:end] + text[at:end] + text[end:]
        elif rule == 2:
            text = text[:at] + chance.choice(_FRAGMENTS) + text[end:]
        else:
            text = (
                text[:at] + chr(chance.choice((0, 9, 34, 92, 123, 125, 0x2028, 0x10FFFF, chance.randrange(0xD800)))) + text[end:]
            )
    return text
