"""HPACK blocks of one connection: the native codec reads what the library reads, block by block, and both tables agree."""

from __future__ import annotations

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.hpack import encode_integer

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import spoiled
from tpy.hot import codec
from tpy.http2.codes import ConnectionFault
from tpy.http2.header_blocks import HeaderReader, Headers

INVARIANT = (
    "the blocks of a connection are read as hpack reads them, or left to it, whatever the fields, their sizes, the size of the"
    " table, and whatever bytes are wrong"
)
READ, LEFT = "read natively", "left to hpack"
RULES = (READ, LEFT) if codec.FORM == codec.NATIVE else (LEFT,)

_LISTS_BYTES_MAX = (150, 1200, 6000, 65_536)
_NAMES = (
    b":method",
    b":path",
    b"te",
    b"content-type",
    b"x-request-id",
    b"traceparent",
    b"authorization",
    b"x" * 40,
    b"",
    b"\xff\x00",
)
_SIZES = (0, 1, 2, 7, 20, 60, 126, 127, 128, 300, 4000, 4064, 4097)


class _Spelling(Encoder):
    """Writes fields in all ways that HPACK has, right ones and others."""

    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self._chance = chance

    def block(self) -> bytes:
        """The next block of the connection."""
        chance = self._chance
        if chance.random() < 0.05:
            self.header_table_size = chance.choice((0, 40, 200, 1000, 4096))
        fields = []
        for _ in range(chance.choice((0, 1, 2, 5, 12))):
            value = chance.choice(
                (b"POST", b"trailers", chance.randbytes(chance.choice(_SIZES[:11])), b"v" * chance.choice(_SIZES))
            )
            fields.append((chance.choice(_NAMES), value, chance.random() < 0.2))
        is_short = sum(len(value) for _, value, _ in fields) < 500  # the library writes long ones in milliseconds
        return self.encode(fields, huffman=is_short and chance.random() < 0.8)


def _literal(chance: Chance) -> bytes:
    """A field by hand: any index, integers that go on, strings whose padding may be wrong."""
    first = chance.choice((0x00, 0x10, 0x20, 0x40, 0x80)) | chance.randrange(64)
    more = bytes(chance.choice((0x00, 0x01, 0x7F, 0x80, 0x80, 0x80, 0xFF)) for _ in range(chance.randrange(8)))
    text = chance.randbytes(chance.randrange(6)) + chance.choice((b"", b"\xff", b"\xff\xff\xff\xff", b"\x1f"))
    return bytes((first,)) + more + bytes((len(text) | chance.choice((0, 0x80)),)) + text


def _by_hand(chance: Chance) -> bytes:
    """Fields that fill the table and ask for its last entries, which the fields before may have pushed out."""
    pieces = []
    for _ in range(chance.choice((1, 2, 4, 8))):
        if chance.random() < 0.5:
            pieces.append(_integer(0x80, 7, chance.choice((0, 2, 61, *range(62, 69)))))
        else:
            name = chance.choice((0, 1, 4, *range(62, 67)))
            pieces.append(_integer(0x40, 6, name))
            value = b"v" * chance.choice((0, 10, 54, 500, 980, 1000, 1300, 2000, 4000, 4032, 4064))
            pieces.append((b"" if name else _integer(0, 7, 3) + b"abc") + _integer(0, 7, len(value)) + value)
    return b"".join(pieces)


def _integer(first: int, bits: int, value: int) -> bytes:
    found = encode_integer(value, bits)
    found[0] |= first
    return bytes(found)


Outcome = tuple[Headers | str, list[tuple[bytes, bytes]], int]


def _specified(decoder: Decoder, block: bytes) -> Outcome:
    """The fields as hpack reads them from a block, and its table then."""
    found: Headers | str
    try:
        found = tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
    except OversizedHeaderListError:
        found = "too large"
    except HPACKError:
        found = "wrong"
    table = decoder.header_table
    return found, [(bytes(name), bytes(value)) for name, value in table.dynamic_entries], table.maxsize


def _resizes(block: bytes) -> int:
    """The number of bytes at the beginning that may be a new size of the table."""
    return len(block) - len(block.lstrip(bytes(range(0x20, 0x40))))


def _found(reader: HeaderReader[Headers], block: bytes, *, are_trailers: bool) -> Outcome:
    found: Headers | str
    try:
        found = reader.decode(block) if are_trailers else reader.request(block)
    except ConnectionFault as fault:
        found = "too large" if "too large" in fault.text else "wrong"
    table = reader.table
    return found, [(bytes(name), bytes(value)) for name, value in table.dynamic_entries], table.maxsize


def compare(
    blocks: list[bytes], list_bytes_max: int, chance: Chance | None = None, reader_of: type[HeaderReader[Headers]] = HeaderReader
) -> None:
    """Raise Violation where the two differ. A connection ends with its first wrong block."""
    decoder, reader = Decoder(max_header_list_size=list_bytes_max), reader_of(tuple, list_bytes_max)
    for number, block in enumerate(blocks):
        if chance is not None:
            chance.took(READ if reader.read_natively(block) is not None else LEFT)
        are_trailers = chance is not None and chance.random() < 0.2
        found, expected = _found(reader, block, are_trailers=are_trailers), _specified(decoder, block)
        if found != expected and not (found[0] == "wrong" and _resizes(block) > 2):
            raise Violation(f"{blocks[: number + 1]!r}\n  read as {found}\n  hpack   {expected}")
        if isinstance(expected[0], str) or isinstance(found[0], str):
            return


def run(chance: Chance, reader_of: type[HeaderReader[Headers]] = HeaderReader) -> int:
    """One connection."""
    writer, by_hand = _Spelling(chance), chance.random() < 0.5
    few = chance.random() < 0.1  # blocks, so that they are remembered, and trailers between
    blocks = []
    for _ in chance.rounds((1, 5, 20)):
        if few:
            blocks.append(chance.choice((b"\xbe", b"\xbe", b"\x40\x01a\x01" + chance.choice((b"x", b"y", b"z")))))
            continue
        block = _by_hand(chance) if by_hand else writer.block()
        if chance.random() < (0.02 if by_hand else 0.2):
            block += _literal(chance)
        elif chance.random() < 0.1:
            block = bytes(spoiled(chance, block))
        blocks.append(block)
    compare(blocks, chance.choice(_LISTS_BYTES_MAX), chance, reader_of)
    return len(blocks)


def attack(data: bytes) -> int:
    """Any bytes, as two blocks."""
    half = len(data) // 2
    compare([data], _LISTS_BYTES_MAX[-1])
    compare([data[:half], data[half:]], _LISTS_BYTES_MAX[-1])
    return 2
