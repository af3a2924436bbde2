"""The fields of a protobuf message, found in its bytes: counted before a parser makes objects of them, and large ones left where
they are.

Protobuf's parser holds the interpreter from the first byte to the last, and makes hundreds of bytes of memory of two. So no more
fields are given to it than a bound says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tpy.errors import Internal

VARINT, FIXED64, LENGTH_DELIMITED, GROUP_START, GROUP_END, FIXED32 = range(6)
"""Wire types: the lowest three bits of a tag."""

_WIRE_TYPE_MASK: Final = 7
MORE: Final = 0x80
"""The bit of a byte that says that a number goes on in the next one."""
_LOW: Final = 0x7F
"""The other bits: seven of the number."""
VARINT_BYTES_MAX: Final = 10
_SHORT_BYTES_MAX: Final = 5
"""Of a tag or a length, which protobuf reads as 32 bits."""
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}

Field = tuple[int, int, int, int]
"""(tag, where the field begins, where its value begins, where it ends). A tag is the number of the field and its wire type."""


class TooManyFields(Exception):
    """There are more fields than the budget has left."""


class FieldBudget:
    """The number of fields that may still be read, in one message and in those within it."""

    __slots__ = ("left",)

    def __init__(self, count: int) -> None:
        self.left = count


def length_delimited(number: int) -> int:
    """The tag of a field that is a message, a string, bytes, or packed numbers."""
    return number << 3 | LENGTH_DELIMITED


def each_field(data: memoryview, budget: FieldBudget) -> Iterator[Field]:
    """The fields of the message in `data`, but those of groups, which only protobuf 2 has. Raises Internal, as Triton, for bytes
    that are not a message, TooManyFields beyond `budget`."""
    at, end = 0, len(data)
    groups: list[int] = []
    while at < end:
        if not budget.left:
            raise TooManyFields
        budget.left -= 1
        start = at
        tag = data[at]
        at += 1
        if tag >= MORE:
            tag, at = _read_varint(data, start, end, _SHORT_BYTES_MAX)
        wire_type = tag & _WIRE_TYPE_MASK
        body = at
        if wire_type == LENGTH_DELIMITED:
            length = data[at] if at < end else MORE
            if length < MORE:
                at += 1
            else:
                length, at = _read_varint(data, at, end, _SHORT_BYTES_MAX)
            body = at
            at += length
        elif wire_type == VARINT:
            _, at = _read_varint(data, at, end)
        elif wire_type == GROUP_START:
            groups.append(tag)
            continue
        elif wire_type == GROUP_END:
            if not groups or groups.pop() != tag - GROUP_END + GROUP_START:
                raise unparsable()
            continue
        elif wire_type in _FIXED_BYTES:
            at += _FIXED_BYTES[wire_type]
        else:
            raise unparsable()
        if at > end:
            raise unparsable()
        if not groups:
            yield tag, start, body, at
    if groups:
        raise unparsable()


def count_nested_fields(data: memoryview, descriptor: Any, budget: FieldBudget) -> None:
    """Look at all fields of a message and of the messages within it, as its descriptor says which are. Raises as `each_field`."""
    within = _messages_within(descriptor)
    for tag, _, body, end in each_field(data, budget):
        inner = within.get(tag)
        if inner is not None and end > body:
            count_nested_fields(data[body:end], inner, budget)


_WITHIN: dict[str, dict[int, Any]] = {}


def _messages_within(descriptor: Any) -> dict[int, Any]:
    """The fields of a message that are messages, by their tag."""
    within = _WITHIN.get(descriptor.full_name)
    if within is None:
        within = {
            length_delimited(field.number): field.message_type for field in descriptor.fields if field.message_type is not None
        }
        _WITHIN[descriptor.full_name] = within
    return within


def unparsable() -> Internal:
    """The error for bytes that are not a message, in Triton's words."""
    return Internal("Unable to parse request")


def _read_varint(data: memoryview, at: int, end: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """A number of seven bits to a byte, lowest first, and where it ends."""
    value = shift = 0
    last = min(end, at + bytes_max)
    while at < last:
        octet = data[at]
        at += 1
        value |= (octet & _LOW) << shift
        if octet < MORE:
            return value, at
        shift += 7
    raise unparsable()


def varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits to a byte, lowest first."""
    if value < MORE:
        return bytes((value,))
    octets = bytearray()
    while value >= MORE:
        octets.append(value & _LOW | MORE)
        value >>= 7
    octets.append(value)
    return bytes(octets)
