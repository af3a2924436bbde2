"""The file: a preface, and then entries, each behind its length and its checksum.

    preface     8 bytes "TPYREC\\r\\n", 4 bytes version
    entry       4 bytes length of the content, 4 bytes CRC-32 of the content, content

Numbers are little-endian. A file that ends anywhere can be read up to its last whole entry.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

import msgspec

from tpy.limits import RECORDING_ENTRY_BYTES_MAX
from tpy.recording.core.entries import Beginning, Entry, RecordedRequest, RecordingEnd
from tpy.units import MIB

VERSION: Final = 1
_MAGIC: Final = b"TPYREC\r\n"
_PREFACE: Final = Struct("<8sI")
_HEAD: Final = Struct("<II")
_CONTENT_BYTES_MAX: Final = RECORDING_ENTRY_BYTES_MAX + 16 * MIB
"""Of an entry in the file: beside the tensors there are names, parameters and texts, which are bounded elsewhere."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


class UnreadableRecording(Exception):
    """The file is not a recording, or has another version. `str()` is one sentence."""


class EntryTooLarge(Exception):
    """An entry that no reader would take."""


def write_preface(beginning: Beginning) -> bytes:
    """The first bytes of a file."""
    return _PREFACE.pack(_MAGIC, VERSION) + write_entry(beginning)


def write_entry(entry: Entry) -> bytes:
    """The bytes of an entry. Raises EntryTooLarge."""
    content = _encoder.encode(entry)
    if len(content) > _CONTENT_BYTES_MAX:
        raise EntryTooLarge
    return _HEAD.pack(len(content), zlib.crc32(content)) + content


class RecordingReader:
    """Reads a recording as its bytes come: `feed` returns the requests, and `finish` says how it ended.

    `beginning` is there when the first entry was. `problem` is "" until something cannot be read: what comes after it is not
    looked at. `end` is there when the recording was ended in order.
    """

    def __init__(self) -> None:
        self.beginning: Beginning | None = None
        self.end: RecordingEnd | None = None
        self.problem = ""
        self.requests = 0
        self._buffer = bytearray()
        self._at = 0
        """The place in the file of the first byte of the buffer."""
        self._begun = False

    def feed(self, data: bytes) -> list[RecordedRequest]:
        """The requests that are complete with these bytes. Raises UnreadableRecording for a file that is not a recording, or has
        another version."""
        return [request for _, _, request in self.feed_placed(data)]

    def feed_placed(self, data: bytes) -> list[tuple[int, int, RecordedRequest]]:
        """The same, each behind the byte of the file at which its entry begins, and the length of that. See `read_entry`."""
        found: list[tuple[int, int, RecordedRequest]] = []
        if self.problem:
            return found
        self._buffer += data
        if not self._begun and not self._begin():
            return found
        taken = 0
        while not self.problem and (size := self._whole_entry(taken)):
            entry = self._read(taken, size)
            if entry is not None:
                found.append((self._at + taken, size, entry))
            taken += size
        del self._buffer[:taken]
        self._at += taken
        return found

    def finish(self) -> None:
        """There are no more bytes. Raises UnreadableRecording for less than a preface."""
        if not self._begun:
            raise UnreadableRecording("this is not a recording: it ends within its first 12 bytes")
        if self._buffer and not self.problem:
            self.problem = f"it is cut off at byte {self._at + len(self._buffer)}, in the entry that begins at byte {self._at}"
        elif not self.problem and self.end is None:
            self.problem = f"it is cut off at byte {self._at}: the last entry, which says that it is whole, is missing"

    def _begin(self) -> bool:
        known = bytes(self._buffer[: len(_MAGIC)])
        if known != _MAGIC[: len(known)]:
            raise UnreadableRecording(f"this is not a recording: it begins with {known!r} in place of {_MAGIC!r}")
        if len(self._buffer) < _PREFACE.size:
            return False
        _, version = _PREFACE.unpack_from(self._buffer)
        if version != VERSION:
            raise UnreadableRecording(f"the recording has format version {version}, this tpy reads version {VERSION}")
        del self._buffer[: _PREFACE.size]
        self._at = _PREFACE.size
        self._begun = True
        return True

    def _whole_entry(self, taken: int) -> int:
        """The size of the entry there, 0 for one that has not come as a whole."""
        if len(self._buffer) - taken < _HEAD.size:
            return 0
        length, _ = _HEAD.unpack_from(self._buffer, taken)
        if length > _CONTENT_BYTES_MAX:
            self._damaged(taken, f"a length of {length} bytes")
            return 0
        size: int = _HEAD.size + length
        return size if len(self._buffer) - taken >= size else 0

    def _read(self, taken: int, size: int) -> RecordedRequest | None:
        _, checksum = _HEAD.unpack_from(self._buffer, taken)
        content = bytes(memoryview(self._buffer)[taken + _HEAD.size : taken + size])
        if zlib.crc32(content) != checksum:
            self._damaged(taken, "a checksum that does not fit its content")
            return None
        try:
            entry = _decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
            self._damaged(taken, f"content that is not an entry ({error})")
            return None
        match entry:
            case _ if self.end is not None:
                self._damaged(taken, "its place behind the last one")
            case Beginning() if self.beginning is None:
                self.beginning = entry
            case Beginning():
                self._damaged(taken, "the kind of the first one")
            case _ if self.beginning is None:
                self._damaged(taken, "its place before the first one")
            case RecordingEnd():
                self.end = entry
            case RecordedRequest():
                self.requests += 1
                return entry
        return None

    def _damaged(self, taken: int, found: str) -> None:
        self.problem = f"it is damaged: the entry that begins at byte {self._at + taken} has {found}"


def read_entry(data: bytes) -> RecordedRequest:
    """The request in the bytes of one entry that `feed_placed` has found. Raises UnreadableRecording for others: the file was
    changed meanwhile."""
    changed = UnreadableRecording("the recording was changed while it was read")
    if len(data) < _HEAD.size:
        raise changed
    length, checksum = _HEAD.unpack_from(data)
    content = memoryview(data)[_HEAD.size :]
    if len(content) != length or zlib.crc32(content) != checksum:
        raise changed
    entry = _decoder.decode(content)
    if not isinstance(entry, RecordedRequest):
        raise changed
    return entry
