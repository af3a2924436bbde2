"""Scratch directories: folders of files that one server needs, removed with it, or by the next one if it was killed.

Each is locked (flock) by the process that made it as long as that lives. Blocking: for threads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_LOCKED: Final = "-locked"
"""The end of their names: only a folder that was called so after it was locked may be taken for abandoned."""
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchDirectory:
    """An empty folder whose name begins with `prefix`, below `parent` or the system's place for temporary files. Making it
    removes abandoned ones. Raises OSError."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        remove_abandoned(prefix, parent)
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = os.open(made, _OPEN)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name + _LOCKED))

    def remove(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def remove_abandoned(prefix: str = "tpy-", parent: Path | None = None) -> None:
    """Remove the scratch directories whose names begin with `prefix`, that are ours, and whose process has gone."""
    folder = Path(tempfile.gettempdir()) if parent is None else parent
    try:
        names = [name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(_LOCKED)]
    except OSError:
        return
    for name in names:
        try:
            lock = os.open(folder / name, _OPEN)
        except OSError:
            continue  # another has removed it, or it is not a folder
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder / name, ignore_errors=True)
        except OSError:
            continue  # it is in use
        finally:
            os.close(lock)
