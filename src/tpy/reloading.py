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


@contextmanager
def reloaded(read: Callable[[], None]) -> Iterator[None]:
    """Have `read` called at each reload within the block. It keeps what it had when it fails."""
    key = object()
    _readers[key] = read
    try:
        yield
    finally:
        del _readers[key]


def reload(why: str) -> None:
    """Read everything again, once: ports share the configuration of access. What cannot be read is an error in the log, where
    `why` names the cause."""
    whole = True
    for read in dict.fromkeys(_readers.values()):
        try:
            read()
        except Exception as error:
            whole = False
            _log.error("not reloaded, what was there stays in use: %(reason)s", {"reason": str(error)})
    if whole:
        _log.info("reloaded at %(why)s: log files, certificates, keys of access", {"why": why})
    else:
        _log.warning("reloaded in part only at %(why)s, see the errors before", {"why": why})
