"""Files that are read again while the server runs: certificates, the log file, which is opened again, and model repositories.

Whoever has read such a file says for how long with `reloaded`; `reload` calls all of them, in the loop's thread. One list for the
process, as signals are the process's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

_readers: dict[object, Callable[[], None]] = {}
_reports: dict[object, Callable[[str, int], None]] = {}


@contextmanager
def reloaded(read: Callable[[], None]) -> Iterator[None]:
    """Have `read` called at each reload within the block. It keeps what it had when it fails."""
    key = object()
    _readers[key] = read
    try:
        yield
    finally:
        del _readers[key]


@contextmanager
def reload_reported(report: Callable[[str, int], None]) -> Iterator[None]:
    """Have `report` called after each reload within the block, with why it was and how many readers failed."""
    key = object()
    _reports[key] = report
    try:
        yield
    finally:
        del _reports[key]


def reload(why: str) -> None:
    """Read everything again, once: ports share the configuration of access. What cannot be read is an error in the log, where
    `why` names the cause."""
    failures = 0
    for read in dict.fromkeys(_readers.values()):
        try:
            read()
        except Exception as error:
            failures += 1
            _log.error("not reloaded, the previous settings stay in use: %(reason)s", {"reason": str(error)})
    if not failures:
        _log.info("reloaded at %(why)s: log files, certificates, keys of access", {"why": why})
    else:
        _log.warning("reloaded in part only at %(why)s, see the errors before", {"why": why})
    for report in tuple(_reports.values()):
        report(why, failures)
