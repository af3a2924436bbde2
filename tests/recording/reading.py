"""Whole recordings, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tpy.recording.core.entries import RecordedRequest
from tpy.recording.core.file_format import RecordingReader


def read_recording(blocks: Iterable[bytes], reader: RecordingReader) -> Iterator[RecordedRequest]:
    """All requests of a file that comes in blocks; `reader` then knows the rest."""
    for block in blocks:
        yield from reader.feed(block)
    reader.finish()


def read_file(path: Path) -> list[RecordedRequest]:
    """All requests of a file that is whole."""
    reader = RecordingReader()
    found = list(read_recording([path.read_bytes()], reader))
    assert not reader.problem
    return found
