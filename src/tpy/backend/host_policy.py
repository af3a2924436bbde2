"""Host policies: which CPU cores and which memory node the threads of an instance use (`--host-policy`).

The engine binds the thread of each instance before anything of the instance is made in it; threads and processes that are started
from there inherit it. A backend needs `bound` only where it starts threads or processes elsewhere on behalf of an instance.

Source: Triton core, numa_utils; its texts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tpy.errors import Internal, InvalidArgument, Unsupported

_SETTINGS: Final = ("numa-node", "cpu-cores")

_CORE_MAX: Final = 1023
"""The highest core of glibc's cpu_set_t, which is Triton's bound, too."""

_NODE_MAX: Final = 63
"""Triton's mask of memory nodes is one word."""

_SET_MEMPOLICY: Final[Mapping[str, int]] = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
"""The system call's number by machine; glibc has no function for it."""

_MPOL_DEFAULT: Final = 0
_MPOL_BIND: Final = 2


class HostPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a host policy: no cores means all that the process may use, no node means any."""

    cpu_cores: tuple[int, ...] = ()
    numa_node: int | None = None

    def __bool__(self) -> bool:
        """True if anything is set."""
        return self != ANYWHERE


ANYWHERE: Final = HostPolicy()


def parse_host_policies(texts: Sequence[str]) -> dict[str, HostPolicy]:
    """The policies of `<policy name>,<setting>=<value>` by name; of a setting that is given twice the last counts.

    Raises InvalidArgument or Unsupported, naming what is wrong. Whether the cores exist is seen when a thread is bound to them.
    """
    policies: dict[str, HostPolicy] = {}
    for text in texts:
        name, _, rest = text.partition(",")
        setting, _, value = rest.partition("=")
        if not (name and setting and value):
            raise InvalidArgument(f"--host-policy option format is '<policy name>,<setting>=<value>'. Got {text}")
        policy = policies.get(name, ANYWHERE)
        if setting == "cpu-cores":
            policies[name] = msgspec.structs.replace(policy, cpu_cores=_cores(value))
        elif setting == "numa-node":
            policies[name] = msgspec.structs.replace(policy, numa_node=_number("numa-node", value, maximum=_NODE_MAX))
        else:
            known = ", ".join(f"'{each}'" for each in _SETTINGS)
            raise Unsupported(f"Unsupported host policy setting '{setting}' is specified, supported settings are {known}")
    return policies


def _cores(text: str) -> tuple[int, ...]:
    """Ranges, separated by commas: `0-3,8-11`."""
    cores: set[int] = set()
    for part in text.split(","):
        lower, dash, upper = part.partition("-")
        if not dash:
            raise InvalidArgument(
                f"host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {part}"
            )
        cores.update(range(_number("cpu-cores", lower, maximum=_CORE_MAX), _number("cpu-cores", upper, maximum=_CORE_MAX) + 1))
    if not cores:
        raise InvalidArgument(f"host policy setting 'cpu-cores' names no core: '{text}'")
    return tuple(sorted(cores))


def _number(setting: str, text: str, *, maximum: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InvalidArgument(f"Parsing '{setting}' value: Can't parse '{text}' to integer")
    number = int(text)
    if number > maximum:
        raise InvalidArgument(f"host policy setting '{setting}': expected at most {maximum}, got {number}")
    return number


def bind(policy: HostPolicy) -> None:
    """Bind the calling thread, and what it starts from now on. Raises Internal with the system's reason."""
    if policy.cpu_cores:
        try:
            os.sched_setaffinity(0, policy.cpu_cores)
        except OSError as error:
            raise Internal(f"Unable to set NUMA thread affinity: {error.strerror}") from error
    if policy.numa_node is not None:
        _set_memory_policy(_MPOL_BIND, 1 << policy.numa_node)


@contextlib.contextmanager
def bound(policy: HostPolicy) -> Iterator[None]:
    """`bind` for the length of the block; then the thread has its old cores and memory from anywhere. Raises Internal."""
    if not policy:
        yield
        return
    cores = os.sched_getaffinity(0)
    try:
        bind(policy)
        yield
    finally:
        if policy.cpu_cores:
            os.sched_setaffinity(0, cores)
        if policy.numa_node is not None:
            _set_memory_policy(_MPOL_DEFAULT, 0)


def _set_memory_policy(mode: int, nodes: int) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise Internal(f"Unable to set NUMA memory policy: not known how on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.c_ulong(nodes)
    if libc.syscall(number, mode, ctypes.byref(mask) if nodes else None, _NODE_MAX + 2 if nodes else 0) != 0:
        raise Internal(f"Unable to set NUMA memory policy: {os.strerror(ctypes.get_errno())}")
