"""Opens the POSIX shared memory segments that clients name."""

from __future__ import annotations

import errno
import os
import stat

_FOLDER = "/dev/shm/"

RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""The beginning of the keys of Triton's own segments. A client that could register those could write into the server's memory
(CVE-2025-23320 and what came with it). This server's own segments have no names."""


def open_segment(key: str) -> int:
    """Returns a descriptor of the segment `key`, as shm_open(3) finds it: its name has any number of slashes in front and no
    other. The caller closes it. Raises OSError, or ValueError for a key that no file system takes; links, folders and devices are
    not segments."""
    name = key.lstrip("/")
    if not name or "/" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    # A link could lead to any file of the server's.
    return _open(_FOLDER + name, os.O_NOFOLLOW)


def reopen_segment(pid: int, descriptor: int, identity: tuple[int, int]) -> int:
    """Returns a descriptor of the segment that another process of ours has open, also when it has no name any more. The caller
    closes it. Raises OSError."""
    found = _open(f"/proc/{pid}/fd/{descriptor}", 0)
    if identity_of(found) != identity:  # closed meanwhile, and the number given to another file
        os.close(found)
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return found


def identity_of(descriptor: int) -> tuple[int, int]:
    """Returns what tells a segment from all others."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _open(path: str, flags: int) -> int:
    # Without O_NONBLOCK a pipe would hold up the loop.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return descriptor
