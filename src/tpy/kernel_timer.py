"""KernelTimer: a timer of the Linux kernel (timerfd)."""

from __future__ import annotations

import ctypes
import os

from tpy.units import NS_PER_S

_CLOCK_MONOTONIC = 1  # the clock of time.monotonic_ns; <time.h>
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME; <sys/timerfd.h>
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # TFD_NONBLOCK | TFD_CLOEXEC


class _Setting(ctypes.Structure):
    """struct itimerspec: the interval, always zero here, and the time at which the timer rings."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class KernelTimer:
    """Rings once at a time of the monotonic clock, as exactly as the kernel wakes a thread (tens of microseconds).

    Holds one descriptor, which `close` releases. Python has it in `os` from 3.13 on; until that is the oldest version served, the
    C library is called. All methods are for one thread.
    """

    __slots__ = ("_descriptor", "_library", "_setting", "_setting_address")

    def __init__(self, library: ctypes.CDLL, descriptor: int) -> None:
        self._library = library
        self._descriptor = descriptor
        self._setting = _Setting()
        self._setting_address = ctypes.byref(self._setting)

    @staticmethod
    def open() -> KernelTimer | None:
        """Returns a new timer that is not set; None where the system has no timers, or none left."""
        if _library is None:
            return None
        descriptor: int = _library.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        return None if descriptor < 0 else KernelTimer(_library, descriptor)

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns` (time.monotonic_ns), in place of what was set before. A time that is past rings at once."""
        setting = self._setting
        setting.at_s, setting.at_ns = divmod(max(1, at_ns), NS_PER_S)  # 0 would switch it off
        if self._library.timerfd_settime(self._descriptor, _ABSOLUTE, self._setting_address, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def fileno(self) -> int:
        """The descriptor, which is readable from when it rings until `has_rung`."""
        return self._descriptor

    def has_rung(self) -> bool:
        """True once for each ring; False if it was set anew meanwhile."""
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Release the descriptor. Nobody may wait for it any more."""
        os.close(self._descriptor)


def _load_library() -> ctypes.CDLL | None:
    """Returns the C library if it has these timers (Linux)."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "timerfd_create"):
        return None
    library.timerfd_create.argtypes = (ctypes.c_int, ctypes.c_int)
    library.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return library


_library = _load_library()
