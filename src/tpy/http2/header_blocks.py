"""Header blocks: HPACK in both directions, remembered.

Calls of one client carry the same few headers, and after the first call their blocks are the same bytes. A block that leaves the
dynamic table as it was means the same until something changes the table; so its meaning is remembered until then.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import Generic, TypeVar

from hpack import Decoder, Encoder, HPACKDecodingError, HPACKError, OversizedHeaderListError
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from tpy.hot.codec import read_fields
from tpy.http2.codes import HEADER_TABLE_BYTES, ConnectionFault, Http2Code
from tpy.limits import GRPC_HEADER_BLOCKS_REMEMBERED_MAX, GRPC_HEADER_FIELDS_MAX

Headers = tuple[tuple[bytes, bytes], ...]

_REMEMBERED_BYTES_MAX = 2048

_RESIZES_MAX = 2
"""Table size updates of one block: the least and the last size (RFC 7541, 4.2). Each is a byte, and costs microseconds."""

_SHOWN = re.compile(r" from |: ")
"""Behind it an error of hpack shows bytes, or an object with its address."""

T = TypeVar("T")


def _huffman_tree() -> bytes:
    """HPACK's Huffman code as `read_fields` takes it."""
    nodes = [[0, 0]]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = nodes[0]
        for shift in range(length - 1, 0, -1):
            side = code >> shift & 1
            if not node[side]:
                node[side] = len(nodes)
                nodes.append([0, 0])
            node = nodes[node[side]]
        node[code & 1] = -1 - symbol
    return array("h", [number for node in nodes for number in node]).tobytes()


_HUFFMAN = _huffman_tree()
_STATIC = tuple((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE)


class _CountingTable(HeaderTable):
    """A header table that counts its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.resizes_left = 2**62
        """The number of sizes that are still taken."""

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return super().maxsize

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        if not self.resizes_left:
            raise HPACKDecodingError("more table size updates than a block may begin with")
        self.resizes_left -= 1
        self.changes += 1
        HeaderTable.maxsize.__set__(self, size)  # type: ignore[attr-defined]  # a property's setter has no other name


class HeaderReader(Generic[T]):
    """Decodes the blocks of a peer. `interpret` turns the headers of a request into what is remembered of it; it must depend on
    nothing else. Its errors are passed on and not remembered."""

    def __init__(self, interpret: Callable[[Headers], T], list_bytes_max: int) -> None:
        self._interpret = interpret
        self._list_bytes_max = list_bytes_max
        self._decoder = Decoder(max_header_list_size=list_bytes_max)  # 32 bytes for each field: so their number is bounded, too
        self.table = _CountingTable()
        """Of the peer's latest fields."""
        self._decoder.header_table = self.table
        self._changes = 0
        self._known: dict[bytes, T] = {}

    def request(self, block: bytes) -> T:
        """The block that opens a stream. Raises ConnectionFault as `decode`, and what `interpret` raises."""
        # Other blocks, such as trailers, change the table, too.
        known = self._known.get(block) if self.table.changes == self._changes else None
        if known is None:
            headers = self.decode(block)
            unchanged = self.table.changes == self._changes
            if not unchanged:
                self._changes = self.table.changes
                self._known.clear()
            known = self._interpret(headers)
            if unchanged and len(self._known) < GRPC_HEADER_BLOCKS_REMEMBERED_MAX and len(block) <= _REMEMBERED_BYTES_MAX:
                self._known[block] = known
        return known

    def decode(self, block: bytes) -> Headers:
        """Any block, which must be decoded even when nobody wants it. Raises ConnectionFault: the table is of no use then."""
        table = self.table
        found = self.read_natively(block)
        if found is not None:
            for name, value in found[1]:
                table.add(name, value)
            return self._bounded(found[0])
        table.resizes_left = _RESIZES_MAX
        try:
            fields = tuple((name, value) for name, value in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, "header list too large") from None
        except HPACKError as error:
            text = _SHOWN.split(str(error), 1)[0]
            raise ConnectionFault(Http2Code.COMPRESSION_ERROR, f"cannot decode a header block: {text}") from None
        return self._bounded(fields)

    def read_natively(self, block: bytes) -> tuple[Headers, list[tuple[bytes, bytes]]] | None:
        """Returns the fields of a block, and the entries that the table is to get, where the native codec reads it; else None."""
        table = self.table
        return read_fields(block, _STATIC, table.dynamic_entries, table.maxsize, _HUFFMAN, self._list_bytes_max)

    def _bounded(self, fields: Headers) -> Headers:
        if len(fields) > GRPC_HEADER_FIELDS_MAX:
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, "header list too large")
        return fields


class HeaderWriter:
    """Encodes our blocks, which must go out in the order in which they were encoded."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._table = _CountingTable()
        self._encoder.header_table = self._table
        self._changes = 0
        self._known: dict[Headers, bytes] = {}

    def limit_table(self, size_bytes: int) -> None:
        """The peer's SETTINGS_HEADER_TABLE_SIZE."""
        size_bytes = min(size_bytes, HEADER_TABLE_BYTES)
        encoder = self._encoder
        if size_bytes != encoder.header_table_size:
            encoder.header_table_size = size_bytes
            # The encoder would tell every size, also one that is too large by now: the least and the last do (RFC 7541, 4.2).
            smallest = min(encoder.table_size_changes)
            encoder.table_size_changes = [smallest, size_bytes] if smallest < size_bytes else [size_bytes]
            self._known.clear()

    def constant(self, headers: Headers) -> bytes:
        """Headers that occur again and again: kept in the peer's table."""
        known = self._known.get(headers)
        if known is None:
            known = self._encoder.encode(headers)
            if self._table.changes != self._changes:  # also by a new size, which only this block tells
                self._changes = self._table.changes
                self._known.clear()
            elif len(self._known) < GRPC_HEADER_BLOCKS_REMEMBERED_MAX:
                self._known[headers] = known
        return known

    def varying(self, headers: Headers) -> bytes:
        """Headers of one answer only: not put into the peer's table, and not in Huffman's code, whose encoder takes milliseconds
        for a long text."""
        return self._encoder.encode([(name, value, True) for name, value in headers], huffman=False)
