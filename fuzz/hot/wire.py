"""Messages of ModelInfer written byte by byte: what no writer of protobuf makes, and every reader of it takes."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.chance import Chance
from fuzz.hot.messages import Read, compare, native
from fuzz.tensors import random_tensor, raw
from tpy.frontends.grpc.codec.fields import FIXED32, FIXED64, GROUP_END, GROUP_START, LENGTH_DELIMITED, MORE, VARINT
from tpy.hot import codec

INVARIANT = (
    "a message is read as protobuf and Python read it, whatever way its numbers and shapes are written in, whatever fields are"
    " unknown, there again, empty or out of order, and wherever a message in it comes in two pieces"
)
READ, LEFT = "read natively", "left to Python"
RULES = (READ, LEFT) if codec.FORM == codec.NATIVE else (LEFT,)

_VARINT_BYTES_MAX = 10
_MODEL, _VERSION, _ID, _PARAMETERS, _INPUTS, _OUTPUTS, _RAW = range(1, 8)
_NAME, _DATATYPE, _SHAPE, _INPUT_PARAMETERS, _CONTENTS = range(1, 6)
_BOOL, _INT64, _STRING, _DOUBLE, _UINT64 = range(1, 6)
_SIZES = (0, -1, 2**28 - 1, 2**28, 2**31, 2**32 + 1, 2**62, 2**63)
_NUMBERS = (0, 1, 7, -1, 2**63 - 1, -(2**63))
_TEXTS = (b"", b"x", b"\xff", "\u00e4".encode(), b"s" * 129)
_NAMES_TEXT = "sequence_id sequence_start sequence_end priority timeout triton_enable_empty_final_response own triton_x"
_NAMES = _NAMES_TEXT.split()


class _Writer:
    """Writes fields. `fault` is how often one is unusual."""

    def __init__(self, chance: Chance, fault: float) -> None:
        self.chance = chance
        self.fault = fault

    def is_faulty(self) -> bool:
        return self.chance.random() < self.fault

    def varint(self, value: int) -> bytes:
        """A number, now and then with bytes that add nothing."""
        value %= 2**64
        octets = bytearray()
        while value >= MORE:
            octets.append(value % MORE | MORE)
            value //= MORE
        octets.append(value)
        if self.is_faulty():
            for _ in range(min(self.chance.choice((1, 2, 3, 9)), _VARINT_BYTES_MAX - len(octets))):
                octets[-1] |= MORE
                octets.append(0)
        return bytes(octets)

    def tag(self, number: int, wire_type: int) -> bytes:
        return self.varint(number << 3 | wire_type)

    def field(self, number: int, content: bytes) -> bytes:
        """A field with a length, which may be wrong."""
        size = len(content)
        if self.is_faulty() and self.chance.random() < 0.1:
            size += self.chance.choice((-1, 1, 2**28, 2**31, 2**32, 2**63))
        return self.tag(number, LENGTH_DELIMITED) + self.varint(size) + content

    def unknown(self) -> bytes:
        """A field that the message does not have, or has with another type."""
        number = self.chance.choice((1, 3, 5, 7, 8, 9, 15, 16, 2**29 - 1))
        writers: tuple[Callable[[], bytes], ...] = (
            lambda: self.tag(number, VARINT) + self.varint(2**64 - 1),
            lambda: self.tag(number, FIXED32) + bytes(4),
            lambda: self.tag(number, FIXED64) + bytes(8),
            lambda: self.field(number | 8, b"abc"),
            lambda: self.tag(number, GROUP_START) + self.field(_RAW, b"xx") + self.tag(number, GROUP_END),
            lambda: self.tag(number, GROUP_END),
            lambda: b"\x02\x00",
        )
        return self.chance.choice(writers)()

    def message(self, fields: list[bytes]) -> bytes:
        """The fields, now and then in another order, one of them not there or there again."""
        chance = self.chance
        if self.is_faulty():
            fields = chance.sample(fields, len(fields))
        if self.is_faulty():
            fields = [*fields, chance.choice(fields)]
        if self.is_faulty():
            fields.pop(chance.randrange(len(fields)))
        if self.is_faulty():
            fields.insert(chance.randrange(len(fields) + 1), self.unknown())
        return b"".join(fields)

    def text(self, text: str) -> bytes:
        return self.chance.choice(_TEXTS) if self.is_faulty() else text.encode()

    def shape(self, sizes: list[int]) -> bytes:
        """Packed, in two pieces, or one by one."""
        chance = self.chance
        if self.is_faulty():
            sizes = [*sizes, chance.choice(_SIZES)]
        numbers = [self.varint(size) for size in sizes]
        if not self.is_faulty():
            return self.field(_SHAPE, b"".join(numbers))
        if chance.random() < 0.5:
            return b"".join(self.tag(_SHAPE, VARINT) + number for number in numbers)
        at = chance.randrange(len(numbers) + 1)
        return self.field(_SHAPE, b"".join(numbers[:at])) + self.field(_SHAPE, b"".join(numbers[at:]))

    def parameter(self) -> bytes:
        """An entry of `parameters`: of any kind, or of two, of which the last one counts."""
        chance = self.chance
        values = (
            self.tag(_BOOL, VARINT) + self.varint(chance.choice((0, 1, 2))),
            self.tag(_INT64, VARINT) + self.varint(chance.choice(_NUMBERS)),
            self.field(_STRING, chance.choice(_TEXTS)),
            self.tag(_DOUBLE, FIXED64) + bytes(6) + chance.choice((b"\xf8\x3f", b"\xf0\x7f")),
            self.tag(_UINT64, VARINT) + self.varint(chance.choice(_NUMBERS)),
        )
        value = chance.choice(values) + (chance.choice(values) if self.is_faulty() else b"")
        return self.field(_PARAMETERS, self.message([self.field(1, self.text(chance.choice(_NAMES))), self.field(2, value)]))

    def request(self) -> bytes:
        chance = self.chance
        fields = [self.field(_MODEL, self.text("m"))]
        if chance.random() < 0.4:
            fields.append(self.field(chance.choice((_VERSION, _ID)), self.text("7")))
        if chance.random() < 0.4:
            fields += [self.parameter() for _ in range(chance.choice((1, 2, 3)))]
        raws = []
        for index in range(chance.choice((1, 1, 2, 3))):
            tensor = random_tensor(chance, f"I{0 if self.is_faulty() else index}")
            sizes = [max(1, size) for size in tensor.array.shape]
            parts = [self.field(_NAME, self.text(tensor.name)), self.field(_DATATYPE, self.text(tensor.datatype.value))]
            if self.is_faulty():
                content = self.field(1, b"content_type") + self.field(2, self.field(_STRING, b"str"))
                parts.append(self.field(chance.choice((_INPUT_PARAMETERS, _CONTENTS)), content if chance.random() < 0.5 else b""))
            fields.append(self.field(_INPUTS, self.message([*parts, self.shape(sizes or [1])])))
            raws.append(self.field(_RAW, raw(tensor)))
        for index in range(chance.choice((0, 0, 1, 2))):
            name = self.field(_NAME, self.text(f"O{0 if self.is_faulty() else index}"))
            fields.append(self.field(_OUTPUTS, self.message([name])))
        return self.message([*fields, *raws])


def run(chance: Chance, read: Read = native) -> int:
    """One message."""
    message = _Writer(chance, chance.choice((0.0, 0.003, 0.02, 0.1))).request()
    chance.took(READ if compare(message, read) else LEFT)
    return 1
