"""Bounds of HTTP bodies, heads and answers, and of their JSON."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

HTTP_INPUT_BYTES_MAX_DEFAULT: Final = 64 * MIB
"""--http-max-input-size: Triton's default. Bounds the request body, before and after decompression."""

HTTP_RECEIVE_BYTES_MAX: Final = MIB
"""Of a large body, what one connection takes from its socket in one turn of the loop: some tenths of a millisecond. A sender as
fast as the loop would otherwise keep it in one call for as long as its body lasts."""

HTTP_HEADER_BYTES_MAX: Final = 64 * KIB
"""Request line plus headers. Generous for auth tokens, far below what hurts."""

HEADER_NAMES_REMEMBERED_MAX: Final = 256
"""Names of headers of which it is remembered whether the forward pattern matches them: those of real clients are a few dozen."""

HEADER_NAME_REMEMBERED_CHARACTERS_MAX: Final = 128
"""Longer names are matched anew each time, so that what is remembered stays below 100 KB."""

HTTP_PIPELINED_REQUESTS_MAX: Final = 16
"""Requests of one connection that may wait for their turn; the reader stops reading beyond it."""

HTTP_CHUNKS_MAX: Final = 65_536
"""Chunks in one chunked request body, as Triton 2.73."""

JSON_DEPTH_MAX: Final = 100
"""Nesting of `data` in a JSON request, as Triton 2.73."""

JSON_EXPLAIN_BYTES_MAX: Final = 64 * KIB
"""Broken JSON up to this size is scanned again for Triton's exact text and offset; that scan is slow, so longer documents get
the parser's own words."""

HTTP_STOP_IDLE_S: Final = 0.5
"""At shutdown requests on open HTTP connections are still answered, each as its connection's last. A connection whose
client sends nothing for so long is closed, so that idle ones do not hold the exit: enough for the next request of a client at
work."""

HTTP_CODEC_THREADS_MAX: Final = 4
"""Threads that parse, encode, compress and decompress large HTTP bodies at the same time."""

HTTP_INLINE_JSON_BYTES_MAX: Final = 256 * KIB
"""JSON up to this size is parsed on the loop (a few milliseconds), if it has few values; other goes to a thread."""

HTTP_INLINE_JSON_VALUES_MAX: Final = 8192
"""Values in it: as many take some milliseconds also where each is looked at, because one of them is wrong."""

HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX: Final = 16 * KIB
"""JSON up to this size cannot have more, and is not counted through."""

JSON_LISTS_BYTES_MAX: Final = 512
"""Of JSON up to this size for each input, and one more, numbers become lists before they become arrays: a second parser would
cost more than it saves."""

JSON_WHOLE_BYTES_MAX: Final = 256 * KIB
"""JSON up to this size is parsed as a whole, in a millisecond; of larger documents the arrays and strings are, in pieces."""

HTTP_V1_BODY_BYTES_MAX: Final = 4 * MIB
"""A request of KServe's older protocol is read as a whole, which lets nothing else run for some 40 ms at this size."""

JSON_OUTLINE_BYTES_MAX: Final = 512 * KIB
"""Bytes of a large JSON document besides arrays of numbers or strings and long strings. Parsed as a whole, in some
milliseconds at worst, and up to sixty times as large as Python's objects: room for thousands of tensors and parameters."""

HTTP_INLINE_JSON_ELEMENTS_MAX: Final = 32_768
"""Output elements up to this number are written as JSON on the loop; more go to a thread."""

INLINE_STRING_OUTPUT_BYTES_MAX: Final = 256 * KIB
"""Bytes of an answer's BYTES elements that are written on the loop, in whatever form (half a millisecond as JSON); more go to a
thread. Few elements may be huge, so their number says nothing."""

HTTP_INLINE_ENTRIES_MAX: Final = 256
"""Models, tensors and rows of a document that is made on the loop (ten microseconds each at most); longer ones are made in a
thread."""

HTTP_INLINE_BYTES_MAX: Final = 128 * KIB
"""Binary bodies up to this size are split into the elements of BYTES tensors on the loop (some milliseconds at worst)."""

HTTP_INLINE_COMPRESS_BYTES_MAX: Final = 32 * KIB
"""Response bodies up to this size are compressed on the loop."""

HTTP_STREAM_RESPONSES_MAX: Final = 64
"""Responses of one generate_stream that wait to be written; with as many the request is paused."""

HTTP_READER_BYTES_PER_S_MIN: Final = 4 * KIB
"""Rate at which an answer must be taken on the whole, after the write time-out: slower readers hold answers, and the shutdown."""

HTTP_STREAM_BYTES_MAX: Final = 1 * MIB
"""The same in bytes of their tensors."""

HTTP_DISCARDED_BODY_BYTES_MAX: Final = 1024 * MIB
"""An oversized body is read and thrown away up to this size, so that its sender reads the refusal and the connection lives."""

HTTP_CHUNK_OVERHEAD_BYTES_MAX: Final = 32
"""Bytes of framing per chunk of a chunked body; more (long chunk extensions) is abuse."""
