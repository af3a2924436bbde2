"""The machine and the versions of a measurement: written into the results, because the numbers mean nothing without it."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

import tpy
from benchmarks.servers.peers import Peers, output_of

_PACKAGES = ("trio", "hypercorn", "httptools", "orjson", "msgspec", "numpy", "onnxruntime")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """`load_before` and `load_after` are the machine's one-minute load averages: how quiet it was."""

    date: str
    processor: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    versions: Mapping[str, str]
    load_before: float
    load_after: float = 0.0


def describe_machine(peers: Peers) -> Machine:
    """Look once, before anything is measured."""
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(pages * page_size / 1e9, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        versions={**_own_versions(), **_peer_versions(peers)},
        load_before=os.getloadavg()[0],
    )


def processor() -> str:
    """The name of the processor, or the kind of machine."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _own_versions() -> dict[str, str]:
    versions = {"tpy": tpy.__version__} | {package: importlib.metadata.version(package) for package in _PACKAGES}
    commit = _try(["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"])
    return versions | ({"tpy commit": commit} if commit else {})


def _peer_versions(peers: Peers) -> dict[str, str]:
    found = {}
    if peers.triton is not None:
        code = "import importlib.metadata as m; print('2.51 from nvidia-pytriton', m.version('nvidia-pytriton'))"
        found["Triton"] = _try([str(peers.triton.environment / "bin" / "python"), "-c", code])
    if peers.mlserver is not None:
        code = "import importlib.metadata as m; print(m.version('mlserver'))"
        found["MLServer"] = _try([str(peers.mlserver.parent / "python"), "-c", code])
    return {name: version for name, version in found.items() if version}


def _try(command: list[str]) -> str:
    try:
        return output_of(command)
    except (OSError, subprocess.SubprocessError):
        return ""
