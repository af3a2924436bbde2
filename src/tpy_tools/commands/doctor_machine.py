"""`tpy doctor`: what a server will find on this machine, and what is wrong with it, one line each."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
import orjson

from tpy import __version__
from tpy.cli.serve import visible_gpus
from tpy.doctor import DoctorFinding, Verdict
from tpy.hot import codec
from tpy.limits import (
    DOCTOR_MEMORY_BYTES_MIN,
    DOCTOR_OPEN_FILES_MIN,
    DOCTOR_PROCESSES_MIN,
    DOCTOR_SHARED_MEMORY_BYTES_MIN,
    OPEN_FILES_WANTED,
)
from tpy.units import MIB
from tpy_data.onnxruntime_packages import GPU, installed_packages, package_clash
from tpy_tools.commands.doctor_backends import backends, checks, disks, version_of

_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""A memory limit as large as this means no limit: version 1 of cgroups writes it so."""


def examine(repositories: Sequence[Path], ports: Mapping[str, tuple[str, int]]) -> list[DoctorFinding]:
    """Look at everything. `ports` maps flags to the address and port that the server is to have."""
    looks: list[Callable[[], Iterable[DoctorFinding]]] = [
        _python,
        _packages,
        _codec,
        _onnx_runtime,
        backends,
        checks,
        _gpus,
        lambda: [_port(flag, *place) for flag, place in ports.items()],
        _open_files,
        _memory,
        _processors,
        _shared_memory,
        _processes,
        disks,
        lambda: [_repository(path) for path in repositories],
    ]
    return [finding for look in looks for finding in look()]


def report(findings: Sequence[DoctorFinding], *, as_json: bool) -> tuple[str, bool]:
    """The text to print, and whether a server can start."""
    sound = all(finding.verdict is not Verdict.ERROR for finding in findings)
    if as_json:
        document = {"ok": sound, "findings": [msgspec.to_builtins(finding) for finding in findings]}
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode(), sound
    lines = [
        f"{each.verdict.value:<7}  {each.subject}: {each.found}{f'; {each.advice}' if each.advice else ''}" for each in findings
    ]
    return "\n".join(lines), sound


def _python() -> Iterator[DoctorFinding]:
    version = ".".join(map(str, sys.version_info[:3]))
    verdict = Verdict.OK if sys.version_info >= (3, 11) else Verdict.ERROR
    yield DoctorFinding(
        "Python", verdict, f"{version} ({sys.executable})", "" if verdict is Verdict.OK else "use Python 3.11 or newer"
    )


def _packages() -> Iterator[DoctorFinding]:
    required, extras = _requirements()
    missing = [name for name in required if not version_of(name)]
    if missing:
        yield DoctorFinding("packages", Verdict.ERROR, f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    else:
        yield DoctorFinding("packages", Verdict.OK, f"tpy {__version__} and all {len(required)} that it needs")
    for extra in ("redis", "demo", "cloud", "otel", "jwt"):
        absent = [name for name in extras.get(extra, ()) if not version_of(name)]
        advice = f"pip install {' '.join(absent)}" if absent else ""
        yield DoctorFinding(f"extra {extra}", Verdict.OK, "not installed" if absent else "installed", advice)


def _codec() -> Iterator[DoctorFinding]:
    advice = "" if codec.FORM == codec.NATIVE else "for more throughput of small requests: python -m tpy.hot.build"
    yield DoctorFinding("codec", Verdict.OK, codec.FORM, advice)


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Names of the distributions that tpy needs, and that its extras bring."""
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in _distribution().requires or ():
        name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        (extras.setdefault(extra[1], []) if extra else required).append(name)
    return required, extras


def _distribution() -> metadata.Distribution:
    """The distribution that tpy was installed from, told by its command: another project has a distribution of that name."""
    for command in metadata.entry_points(group="console_scripts", name="tpy"):
        if command.value == "tpy.__main__:main" and command.dist is not None:
            return command.dist
    raise metadata.PackageNotFoundError("tpy")


def _onnx_runtime() -> Iterator[DoctorFinding]:
    subject = "ONNX Runtime"
    clash = package_clash()
    if clash:
        found, _, fix = clash.partition("; fix it with: ")
        yield DoctorFinding(subject, Verdict.WARNING, found, f"fix it with: {fix}")
    try:
        import onnxruntime
    except ImportError as error:
        advice = f"for ONNX models: pip install onnxruntime, or {GPU} for NVIDIA GPUs"
        yield DoctorFinding(subject, Verdict.WARNING, f"cannot be imported ({error})", advice)
        return
    packages = " ".join(f"{name} {version}" for name, version in installed_packages().items())
    yield DoctorFinding(subject, Verdict.OK, f"{packages} with {', '.join(onnxruntime.get_available_providers())}")


def _gpus() -> Iterator[DoctorFinding]:
    inventory = visible_gpus()
    if inventory.trouble:
        yield DoctorFinding("GPUs", Verdict.WARNING, inventory.trouble, "check the NVIDIA driver with nvidia-smi")
        return
    if not inventory.gpus:
        yield DoctorFinding("GPUs", Verdict.OK, "none, models run on the CPU")
        return
    for gpu in inventory.gpus:
        subject = f"GPU {gpu.id}"
        if gpu.compute_capability is None:
            yield DoctorFinding(
                subject, Verdict.WARNING, "its driver says nothing of it", "check the NVIDIA driver with nvidia-smi"
            )
        else:
            capability = ".".join(map(str, gpu.compute_capability))
            yield DoctorFinding(subject, Verdict.OK, f"{gpu.name}, compute capability {capability}")
    packages = installed_packages()
    if packages and GPU not in packages:
        advice = f"pip uninstall -y {' '.join(packages)} && pip install {GPU}"
        yield DoctorFinding("GPUs", Verdict.WARNING, "the ONNX Runtime that is installed cannot use them", advice)


def _port(flag: str, address: str, port: int) -> DoctorFinding:
    subject = f"port {port}"
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)
    except OSError as error:
        why = error.strerror or str(error)
        return DoctorFinding(
            subject, Verdict.ERROR, f"{address}:{port}: {why}", f"end what uses it, or choose another with --{flag}"
        )
    return DoctorFinding(subject, Verdict.OK, f"free on {address} (--{flag})")


def _open_files() -> Iterator[DoctorFinding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    subject = "open files"
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES_WANTED:
        yield DoctorFinding(subject, Verdict.OK, f"the server may have {OPEN_FILES_WANTED}")
        return
    verdict = Verdict.OK if hard >= DOCTOR_OPEN_FILES_MIN else Verdict.WARNING
    advice = "each connection is one; raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)"
    yield DoctorFinding(subject, verdict, f"the server may have {hard}", advice if verdict is Verdict.WARNING else "")


def _memory() -> Iterator[DoctorFinding]:
    limit = _number(*_cgroup_files("memory", "memory.max"), *_cgroup_files("memory", "memory.limit_in_bytes"))
    available = _available_memory()
    smallest = min(available, _UNLIMITED if limit is None else limit)
    text = f"{available // MIB} MiB available"
    if limit is not None and limit < _UNLIMITED:
        text += f", limited to {limit // MIB} MiB by the container"
    scarce = smallest < DOCTOR_MEMORY_BYTES_MIN
    advice = "give the machine or the container more, or serve fewer models" if scarce else ""
    yield DoctorFinding("memory", Verdict.WARNING if scarce else Verdict.OK, text, advice)


def _available_memory() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else _UNLIMITED


def _processors() -> Iterator[DoctorFinding]:
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} cores"
    quota = _processor_quota()
    if quota is not None:
        text += f", limited to {quota:g} by the container"
    if quota is not None and quota < cores:
        advice = "models that start a thread for each core are slowed down: set their thread counts"
        yield DoctorFinding("processors", Verdict.WARNING, text, advice)
    else:
        yield DoctorFinding("processors", Verdict.OK, text)


def _processor_quota() -> float | None:
    """Cores that the cgroup may use; None: no limit."""
    for file in _cgroup_files("cpu", "cpu.max"):
        try:
            quota, _, period = file.read_text().partition(" ")
            return None if quota == "max" else int(quota) / int(period)
        except (OSError, ValueError):
            continue
    used, every = (_number(*_cgroup_files("cpu", f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return None if used is None or every is None or used <= 0 else used / every


def _cgroup_files(controller: str, name: str) -> list[Path]:
    """The paths at which a file of this process's cgroup may be: in its own folder, then in the topmost, a container's."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = [_CGROUPS / name, _CGROUPS / controller / name]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", controller):
            found.insert(0, _CGROUPS / controllers / path.lstrip("/") / name)
    return found


def _processes() -> Iterator[DoctorFinding]:
    """Workers of models, and threads, which count as processes here."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [] if soft == resource.RLIM_INFINITY else [soft]
    of_container = _number(*_cgroup_files("pids", "pids.max"))
    smallest = min([*limits, *([] if of_container is None else [of_container])], default=None)
    if smallest is None or smallest >= DOCTOR_PROCESSES_MIN:
        yield DoctorFinding(
            "processes", Verdict.OK, "no limit" if smallest is None else f"the server may have {smallest}, with threads"
        )
        return
    advice = "each instance is a thread, and often a process; raise the limit (ulimit -u, TasksMax=, --pids-limit)"
    yield DoctorFinding("processes", Verdict.WARNING, f"the server may have {smallest}, with threads", advice)


def _shared_memory() -> Iterator[DoctorFinding]:
    subject = "/dev/shm"
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        yield DoctorFinding(subject, Verdict.WARNING, error.strerror or str(error), "Python models pass large tensors through it")
        return
    scarce = usage.free < DOCTOR_SHARED_MEMORY_BYTES_MIN
    advice = "Python models pass large tensors through it: docker run --shm-size=1g, or an emptyDir of medium Memory"
    text = f"{usage.free // MIB} of {usage.total // MIB} MiB free"
    yield DoctorFinding(subject, Verdict.WARNING if scarce else Verdict.OK, text, advice if scarce else "")


def _repository(path: Path) -> DoctorFinding:
    subject = f"repository {path}"
    try:
        folders = [entry for entry in os.scandir(path) if entry.is_dir()]
        unreadable = [entry.name for entry in folders if not os.access(entry.path, os.R_OK | os.X_OK)]
    except OSError as error:
        return DoctorFinding(subject, Verdict.ERROR, error.strerror or str(error), "name a folder that this user may read")
    if unreadable:
        found = f"this user may not read {', '.join(sorted(unreadable))}"
        return DoctorFinding(subject, Verdict.ERROR, found, "change their owner or mode")
    return DoctorFinding(
        subject, Verdict.OK, f"{len(folders)} folder{'' if len(folders) == 1 else 's'}", f"tpy check {path} looks into them"
    )


def _number(*files: Path) -> int | None:
    """The number in the first of the files that there is; None for none, or a word."""
    for file in files:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            continue
    return None
