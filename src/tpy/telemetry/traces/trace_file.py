"""TraceFiles: the files of traces, written by a separate thread, so that a slow disk does not hold up the loop."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tpy.errors import InvalidArgument
from tpy.limits import TRACES_CLOSE_S_MAX, TRACES_WAITING_MAX
from tpy.telemetry.traces.trace import Trace

_log = logging.getLogger(__name__)


class TraceFiles:
    """`file` is the file of traces, unless they go into a numbered file: that has a number behind the name, from 0 on. Each is a
    JSON array at all times. What cannot be written is lost: one line in the log says so, until it can be again."""

    def __init__(self, file: str) -> None:
        """Raises InvalidArgument for a file that cannot be written; what is there of a former server is overwritten, as Triton
        does."""
        self._path = Path(file)
        self._number = 0
        self._begun = False
        self._failed = False
        self._waiting: queue.SimpleQueue[tuple[Sequence[Trace], bool] | None] = queue.SimpleQueue()
        _require_writable(self._path)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def write(self, traces: Sequence[Trace], *, numbered: bool) -> None:
        """Write these traces: into a new file, or behind the ones in the current file."""
        if self._waiting.qsize() >= TRACES_WAITING_MAX:
            self._log_failed("the disk is too slow")
            for trace in traces:
                trace.release()
        elif traces:
            self._waiting.put((traces, numbered))

    def close(self) -> None:
        """Return when all is written, or the disk has taken too long."""
        self._waiting.put(None)
        self._thread.join(TRACES_CLOSE_S_MAX)
        if self._thread.is_alive():
            self._log_failed("the disk is too slow")

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            traces, numbered = work
            try:
                rows = b",".join(msgspec.json.encode(row) for trace in traces for row in trace.rows())
                self._write_numbered(rows) if numbered else self._append(rows)
                self._failed = False
            except OSError as error:
                self._log_failed(error.strerror or str(error))
            except Exception:
                _log.exception("traces could not be written")
            finally:
                for trace in traces:
                    trace.release()

    def _write_numbered(self, rows: bytes) -> None:
        path = self._path.with_name(f"{self._path.name}.{self._number}")
        self._number += 1
        path.write_bytes(b"[" + rows + b"]")

    def _append(self, rows: bytes) -> None:
        """The bracket at the end gives way to what comes behind it. A failure leaves what was there."""
        if not self._begun:
            self._path.write_bytes(b"[" + rows + b"]")
            self._begun = True
            return
        with self._path.open("r+b") as file:
            end = file.seek(-1, os.SEEK_END)
            try:
                file.write(b"," + rows + b"]")
                file.flush()
            except OSError:
                os.ftruncate(file.fileno(), end)
                os.pwrite(file.fileno(), b"]", end)
                raise

    def _log_failed(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            _log.error("traces are lost: %(reason)s", {"reason": f"cannot write '{self._path}': {reason}"})


def _require_writable(path: Path) -> None:
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise InvalidArgument(f"--trace-config triton,file: cannot write '{path}': {error.strerror}") from None
