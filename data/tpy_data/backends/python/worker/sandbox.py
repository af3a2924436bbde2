"""The sandbox of a worker: what this process, and whatever it starts, may do from now on. There is no way back.

Landlock bounds the files that can be opened, the processes that can be signalled and traced. Seccomp refuses system calls that
Landlock does not know: sockets, other programs, owners and modes of files, namespaces. Capabilities are given up. All of it is
for the calling thread and the threads that it starts, so it has to come before any other thread, and so before numpy.

Source: Documentation/userspace-api/landlock.rst and seccomp_filter.rst of Linux; numbers from its headers.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

FILES = "files"
SIGNALS = "signals"
CALLS = "system calls"
"""The parts of a sandbox. A kernel may have some of them only."""

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_TRUNCATE = 1 << 14
_IOCTL_DEVICE = 1 << 15
_RIGHTS_BY_VERSION = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""The rights over files that each version of Landlock knows."""

_FILES_VERSION = 3
"""The first that bounds truncation: before it, every file could be emptied. Linux 6.2."""

_SIGNALS_VERSION = 6
"""The first that bounds signals and abstract sockets. Linux 6.12."""

_SCOPES = 0b11
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
"""Rights that mean something for what is not a folder."""

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_VERSION_ONLY = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2

READABLE = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/sys"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/mime.types", "/etc/fonts"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/hosts", "/etc/resolv.conf", "/etc/gai.conf"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust"),
    *("/etc/crypto-policies", "/proc/self", "/proc/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg"),
    *("/proc/uptime", "/proc/version", "/proc/filesystems", "/proc/cgroups", "/proc/devices", "/proc/driver"),
)
"""Read by libraries, beside the interpreter and its packages. Nothing of `/etc` as a whole, where keys are."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/nvidia*", "/dev/dri/*", "/dev/kfd")

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The machine's number for seccomp, and which of the numbers below are its."""

CALLS_REFUSED = {
    errno.EPERM: {
        **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438)},
        **{"kcmp": (312, 272), "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282)},
        **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
        **{"unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40)},
        **{"umount2": (166, 39), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "fsmount": (432, 432)},
        **{"fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
        **{"swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "acct": (163, 89), "reboot": (169, 142)},
        **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104)},
        **{"kexec_file_load": (320, 294), "iopl": (172, None), "ioperm": (173, None), "settimeofday": (164, 170)},
        **{"clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "keyctl": (250, 219)},
        **{"add_key": (248, 217), "request_key": (249, 218), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53)},
        **{"fchmodat2": (452, 452), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54)},
        **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14)},
        **{"lremovexattr": (198, 15), "fremovexattr": (199, 16), "utime": (132, None), "utimes": (235, None)},
        **{"futimesat": (261, None), "utimensat": (280, 88), "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186)},
        **{"semget": (64, 190), "mq_open": (240, 180)},
    },
    errno.ENOSYS: {"clone3": (435, 435)},
}
"""System calls by what they are answered with, and by name: on x86-64 and on aarch64. `clone3` hides its flags from a filter; the
C library takes `clone` then."""

NETWORK_CALLS = {"socket": (41, 198)}
PROGRAM_CALLS = {"execve": (59, 221), "execveat": (322, 281)}
CONDITIONAL_CALLS = {"clone": (56, 220), "prlimit64": (302, 261)}
_NAMESPACES = 0x7E020000
"""Flags of `clone` that make namespaces."""

_LOAD, _EQUAL, _GREATER_EQUAL, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16

_CAPABILITIES_VERSION = 0x20080522


class SandboxError(Exception):
    """The sandbox cannot be made; the text says why."""


def missing_parts() -> list[str]:
    """The parts that this kernel and machine do not have."""
    version = _landlock_version()
    missing = []
    if version < _FILES_VERSION:
        missing.append(f"{FILES} (Landlock {_FILES_VERSION}, Linux 6.2)")
    if version < _SIGNALS_VERSION:
        missing.append(f"{SIGNALS} (Landlock {_SIGNALS_VERSION}, Linux 6.12)")
    if not _has_seccomp():
        missing.append(f"{CALLS} (seccomp, on x86_64 or aarch64)")
    return missing


def enter(order: dict[str, Any]) -> None:
    """Restrict this process. `order`: `read` and `write` are paths, `temporary` its own folder, which TMPDIR names from now on;
    `network` and `programs` allow sockets and other programs; with `required` every part is there. Raises SandboxError."""
    if order["required"] and (missing := missing_parts()):
        raise SandboxError(f"this machine lacks {', '.join(missing)}")
    if len(os.listdir("/proc/self/task")) != 1:
        raise SandboxError("the process has several threads already")
    os.environ["TMPDIR"] = order["temporary"]
    tempfile: Any = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # what it has found before
    reads = [*READABLE, *_own_paths(), *order["read"]]
    try:
        _call(_libc().prctl, _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        version = _landlock_version()
        if version >= _FILES_VERSION:
            _restrict_files(version, reads, [order["temporary"], *order["write"]], programs=order["programs"])
        if _has_seccomp():
            _restrict_calls(filter_program(platform.machine(), network=order["network"], programs=order["programs"]))
        _drop_capabilities()
    except OSError as error:
        raise SandboxError(str(error)) from error


def _own_paths() -> list[str]:
    """The interpreter's folders, those of its packages, and this package's."""
    worker = os.path.dirname(os.path.abspath(__file__))
    prefixes = sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__)
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [each for each in (*prefixes, *sys.path, *libraries, worker) if each and os.path.realpath(each) != "/"]


# Landlock


def _restrict_files(version: int, reads: Iterable[str], writes: Iterable[str], *, programs: bool) -> None:
    handled = _RIGHTS_BY_VERSION[min(version, len(_RIGHTS_BY_VERSION) - 1)]
    scopes = _SCOPES if version >= _SIGNALS_VERSION else 0
    attributes = struct.pack("=QQQ", handled, 0, scopes)[: 24 if version >= _SIGNALS_VERSION else 8]
    ruleset = _call(_libc().syscall, _LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        reading = _READ_FILE | _READ_DIR | (_EXECUTE if programs else 0)
        writing = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEVICE | _EXECUTE) | reading
        for path in reads:
            _allow(ruleset, path, reading & handled)
        for path in writes:
            _allow(ruleset, path, writing)
        for pattern in DEVICES:
            for path in glob.glob(pattern):
                _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _IOCTL_DEVICE) & handled)
        _call(_libc().syscall, _LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Allow this below `path`; one that is not there needs no rule."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _call(_libc().syscall, _LANDLOCK_ADD, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _landlock_version() -> int:
    """0: not in this kernel, or switched off."""
    return max(0, int(_libc().syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _VERSION_ONLY)))


# Seccomp


def _has_seccomp() -> bool:
    return platform.machine() in _ARCHITECTURES and os.path.exists("/proc/sys/kernel/seccomp")


Instruction = tuple[int, int, int, int]
"""Operation, jumps where it holds and where not, operand."""


def filter_program(machine: str, *, network: bool, programs: bool) -> list[Instruction]:
    """The filter for system calls of this machine, in classic BPF."""
    architecture, column = _ARCHITECTURES[machine]
    refused = [
        (numbers[column], error)
        for error, calls in (
            *CALLS_REFUSED.items(),
            *(() if network else ((errno.EACCES, NETWORK_CALLS),)),
            *(() if programs else ((errno.EACCES, PROGRAM_CALLS),)),
        )
        for numbers in calls.values()
    ]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_GREATER_EQUAL, 0, 1, _X32),  # the other numbers of x86-64 for the same calls
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for number, error in refused:
        if number is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error)]
    program += [
        (_EQUAL, 0, 4, CONDITIONAL_CALLS["clone"][column]),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        (_BITS, 0, 1, _NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 4, CONDITIONAL_CALLS["prlimit64"][column]),
        (_LOAD, 0, 0, _ARGUMENT_AT),
        (_EQUAL, 1, 0, 0),  # only its own limits
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return program


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _restrict_calls(program: Sequence[Instruction]) -> None:
    packed = b"".join(struct.pack("=HBBI", *each) for each in program)
    filled = _Program(len(program), packed)
    _call(_libc().prctl, _SET_SECCOMP, _FILTER, ctypes.byref(filled), 0, 0)


# Capabilities


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    _call(_libc().capset, header, bytes(24))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _call(function: Callable[..., int], *arguments: Any) -> int:
    """The result. Raises OSError where it is negative."""
    ctypes.set_errno(0)
    result = int(function(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
