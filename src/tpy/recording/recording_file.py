"""RecordingFile: the file of one recording, written by a separate thread, so that a slow disk does not hold up the loop."""

from __future__ import annotations

import logging
import os
import queue
import threading
from pathlib import Path

from tpy.clock import Clock
from tpy.messages import RecordingOptions
from tpy.recording.core.entries import Beginning, RecordingEnd
from tpy.recording.core.file_format import EntryTooLarge, write_entry, write_preface
from tpy.recording.taking import FinishedRequest
from tpy.units import KIB, NS_PER_S

_log = logging.getLogger(__name__)

_PRIVATE = 0o600
_END_BYTES = 512
"""Kept free for the last entry."""

_LOT_BYTES = 256 * KIB
_PAUSE_S = 0.02
"""The thread that writes takes what has come in lots: woken for each request it would contend with the loop for the GIL."""


class RecordingFile:
    """Takes finished requests on the loop's thread, and writes them in its own, until one of the bounds of `options` is reached,
    it is told to `stop`, or the disk fails. What is public is written by one of the two threads and may be read by all.

    `reason` is why it has ended, "" before; `requests` and `size` are those of the file, `given_back` the bytes of copies that
    were written or left out, `left_out` counts entries that are too large.
    """

    def __init__(self, path: Path, beginning: Beginning, options: RecordingOptions, clock: Clock) -> None:
        """Opens the file, which is new. Raises OSError."""
        self.path = path
        self._options = options
        self._clock = clock
        self.began_ns = clock.now_ns()
        self.ended_ns = 0
        self._deadline_ns = self.began_ns + options.seconds_max * NS_PER_S
        self.reason = ""
        self.requests = 0
        self.waiting = 0
        """Requests that were put; the thread that writes counts finished ones in `_done`."""
        self.given_back = 0
        self.left_out = 0
        self._done = 0
        self._unfinished = self._dropped = 0
        self._lot: list[bytes] = []
        """Entries that go to the disk together: each write gives up the GIL, and takes it from the loop again."""
        self._lot_bytes = 0
        self._queue: queue.SimpleQueue[FinishedRequest | str] = queue.SimpleQueue()
        self._stopping = threading.Event()
        preface = write_preface(beginning)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        self.size = 0
        try:
            self._write(preface)
        except OSError:
            os.close(self._descriptor)
            path.unlink(missing_ok=True)
            raise
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        """True while it takes requests."""
        return not self.reason and self._clock.now_ns() < self._deadline_ns

    @property
    def waiting_count(self) -> int:
        """Requests that wait for the disk."""
        return self.waiting - self._done

    def put(self, finished: FinishedRequest) -> None:
        """Write this request when its turn comes."""
        self.waiting += 1
        self._queue.put(finished)

    def note_missing(self, *, dropped: int, unfinished: int) -> None:
        """Sets the counts of the last entry: requests that are not in the file."""
        self._dropped, self._unfinished = dropped, unfinished

    def stop(self, reason: str) -> None:
        """End the recording behind what waits. Does not wait."""
        self._queue.put(reason)
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the file is closed, or so long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        reason = "an unexpected error, the log of the server has it"
        try:
            reason = self._write_all()
        except OSError as error:
            reason = f"cannot write '{self.path}': {error.strerror or error}"
            _log.error("the recording has ended: %(reason)s", {"reason": reason})
        except Exception:
            _log.exception("the recording has ended")
        finally:
            self.reason = reason
            self.ended_ns = self._clock.now_ns()
            os.close(self._descriptor)

    def _write_all(self) -> str:
        """Write what comes until there is to be no more; returns why."""
        reason = ""
        while not reason:
            left_s = (self._deadline_ns - self._clock.now_ns()) / NS_PER_S
            try:
                work = self._queue.get(timeout=max(0.0, left_s)) if left_s > 0 else self._queue.get_nowait()
            except queue.Empty:
                reason = "max_seconds is reached"
                break
            reason = work if isinstance(work, str) else self._take(work)
            if reason or self._queue.empty() or self._lot_bytes >= _LOT_BYTES:
                self._write_lot()
            if not reason and self._queue.empty():
                self._stopping.wait(_PAUSE_S)
        self.reason = reason  # nothing more is put
        unfinished = self._unfinished + self.waiting_count
        self._write(write_entry(RecordingEnd(reason=reason, dropped=self._dropped + self.left_out, unfinished=unfinished)))
        _log.info("the recording has ended: %(reason)s", {"reason": reason})
        return reason

    def _take(self, finished: FinishedRequest) -> str:
        """Put one request into the lot. Returns why it was the last one, "" if it was not."""
        self.given_back += finished.held_bytes
        try:
            data = write_entry(finished.entry(self._options.inputs, self._options.outputs))
        except EntryTooLarge:
            self.left_out += 1
            self._done += 1
            return ""
        if self.size + self._lot_bytes + len(data) + _END_BYTES > self._options.bytes_max:
            self._done += 1
            return "max_bytes is reached"
        self._lot.append(data)
        self._lot_bytes += len(data)
        return "max_requests is reached" if self.requests + len(self._lot) >= self._options.requests_max else ""

    def _write_lot(self) -> None:
        """Write the requests of the lot together; where the disk has no room for all, as many as it has."""
        lot, self._lot, self._lot_bytes = self._lot, [], 0
        try:
            self._write(b"".join(lot))
            self._count(len(lot))
        except OSError:
            for data in lot:
                self._write(data)
                self._count(1)

    def _count(self, written: int) -> None:
        self.requests += written
        self._done += written

    def _write(self, data: bytes) -> None:
        """All of it, or nothing: what a full disk took of it is cut off again."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)
