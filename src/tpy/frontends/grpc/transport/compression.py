"""Compression of messages: gzip and deflate (zlib), both ways, never without a bound."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import trio
from grpclib.const import Status

from tpy.frontends.grpc.transport.core.calls import Encoding, FramingFault
from tpy.frontends.grpc.transport.options import CompressionLevel
from tpy.frontends.threads import run_in_thread
from tpy.limits import (
    GRPC_CODEC_THREADS_MAX,
    GRPC_INLINE_UNPACKED_BYTES_MAX,
    GRPC_UNPACKED_BYTES_FREE,
    GRPC_UNPACKED_RATIO_MAX,
)
from tpy.units import KIB, MIB

INLINE_COMPRESSED_BYTES_MAX = KIB
"""Compressed messages up to this size are unpacked on the loop, as far as GRPC_INLINE_UNPACKED_BYTES_MAX goes."""

INLINE_PLAIN_BYTES_MAX = 32 * KIB
"""Messages up to this size are compressed on the loop."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
"""The header of the data says which: clients mix them up."""

_WINDOW: dict[Encoding, int] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_ZLIB_LEVEL: dict[CompressionLevel, int] = {"low": 1, "medium": 6, "high": 9}
_CHUNK_BYTES = 64 * KIB
"""Input is fed in pieces, because the decompressor copies what it has not consumed after each step."""

_STEP_BYTES = MIB


class MessageCodec:
    """Compresses and decompresses the messages of a port; large ones in threads, a bounded number at a time."""

    def __init__(self, level: CompressionLevel, receive_bytes_max: int) -> None:
        self._zlib_level = _ZLIB_LEVEL.get(level)
        self._receive_bytes_max = receive_bytes_max
        self._threads = trio.CapacityLimiter(GRPC_CODEC_THREADS_MAX)

    def reply_encoding(self, accepted: Encoding) -> Encoding:
        """Returns the encoding of responses for a client that likes `accepted` best."""
        return "identity" if self._zlib_level is None else accepted

    def unpack_now(self, message: memoryview, encoding: Encoding) -> memoryview | None:
        """As `unpack`, if it takes less than a millisecond; None: do it in a thread."""
        if len(message) > INLINE_COMPRESSED_BYTES_MAX:
            return None
        limit = min(self._receive_bytes_max, GRPC_INLINE_UNPACKED_BYTES_MAX)
        try:
            return self._unpack(message, encoding, limit)
        except FramingFault as fault:
            if fault.status is Status.RESOURCE_EXHAUSTED and limit < self._receive_bytes_max:
                return None
            raise

    async def unpack(self, message: memoryview, encoding: Encoding) -> memoryview:
        """A compressed message, decompressed in a thread. Raises FramingFault."""
        return await run_in_thread(self._unpack, message, encoding, self._receive_bytes_max, limiter=self._threads)

    def _unpack(self, message: memoryview, encoding: Encoding, limit: int) -> memoryview:
        if encoding == "identity":
            raise FramingFault(Status.INTERNAL, "a message is marked as compressed, but there is no grpc-encoding")
        return memoryview(decompress(message, encoding, limit))

    def pack(self, parts: Sequence[bytes | memoryview], encoding: Encoding) -> bytes:
        """`parts` as one message, compressed with `encoding`, which is not identity."""
        stream = zlib.compressobj(self._zlib_level or 0, wbits=_WINDOW[encoding])
        pieces = [stream.compress(part) for part in parts]
        pieces.append(stream.flush())
        return b"".join(pieces)

    async def pack_in_thread(self, parts: Sequence[bytes | memoryview], encoding: Encoding) -> bytes:
        """As `pack`."""
        return await run_in_thread(self.pack, parts, encoding, limiter=self._threads)


def decompress(message: memoryview, encoding: Encoding, limit: int) -> bytearray:
    """`message` decompressed; never more than `limit` bytes are produced, and one step more.

    Raises FramingFault: INTERNAL for what is corrupt or cut off, RESOURCE_EXHAUSTED for what is larger than `limit`, or than
    GRPC_UNPACKED_BYTES_FREE and GRPC_UNPACKED_RATIO_MAX times what arrived.
    """
    ratio_limit = max(GRPC_UNPACKED_BYTES_FREE, GRPC_UNPACKED_RATIO_MAX * len(message))
    produced = bytearray()
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    at = 0
    try:
        while at < len(message) and not stream.eof:
            pending: memoryview | bytes = message[at : at + _CHUNK_BYTES]
            at += _CHUNK_BYTES
            while True:
                # One byte more than allowed is enough to know that it is too much.
                step_max = min(_STEP_BYTES, min(limit, ratio_limit) + 1 - len(produced))
                step = stream.decompress(pending, step_max)
                produced += step
                if len(produced) > limit:
                    raise FramingFault(
                        Status.RESOURCE_EXHAUSTED, f"Received message larger than max (more than {limit} bytes when decompressed)"
                    )
                if len(produced) > ratio_limit:
                    raise FramingFault(
                        Status.RESOURCE_EXHAUSTED,
                        f"Received message that is compressed too well: {len(message)} bytes for more than {ratio_limit}, beyond "
                        f"{GRPC_UNPACKED_BYTES_FREE} bytes at most {GRPC_UNPACKED_RATIO_MAX} for each are accepted",
                    )
                pending = stream.unconsumed_tail
                if stream.eof or (not pending and len(step) < step_max):
                    break
    except zlib.error as error:
        raise FramingFault(Status.INTERNAL, f"failed to decompress a message as {encoding}: {error}") from None
    if not stream.eof:
        raise FramingFault(Status.INTERNAL, f"failed to decompress a message as {encoding}: it is cut off")
    if stream.unused_data or at < len(message):
        raise FramingFault(Status.INTERNAL, f"failed to decompress a message as {encoding}: there are bytes after its end")
    return produced
