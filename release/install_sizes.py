"""Installs the wheel with each extra, counts what came, and starts a server: `python -m release.install_sizes`, some minutes.

It writes install_sizes.json, which CI compares with what the wheel installs, and docs/reference/install-sizes.md, which
`make docs` makes of it (`--page`). `--extra NAME` measures one anew and keeps the others; the one without a name is `base`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.machine import processor
from benchmarks.servers.process import HOST, SERVER_READY, Ports, running

ROOT: Final = Path(__file__).parents[1]
DATA: Final = Path(__file__).with_suffix(".json")
PAGE: Final = ROOT / "docs" / "reference" / "install-sizes.md"
BASE: Final = "base"
OURS: Final = "tpy-server"
EXTRAS: Final = (
    *(BASE, "cpu", "openvino", "litert", "sklearn", "fil", "genai"),
    *("pandas", "redis", "cloud", "otel", "jwt", "import", "optuna", "demo"),
)
LEFT_OUT: Final = {
    "gpu": "needs an NVIDIA GPU",
    "tensorrt": "needs an NVIDIA GPU",
    "torch": "above 1 GB",
    "tensorflow": "above 1 GB",
    "dali": "above 1 GB",
    "ray": "its servers start with a cluster",
    "ray-data": "as `ray`",
    "analyze": "installs what `import` does",
}
"""Extras for users that are not measured, and why."""

_ROOM: Final = 1.1
"""An installation may be larger by this before somebody has to agree: new versions of packages grow by a few percent."""
_STARTS: Final = 3
_SETTLE_S: Final = 1.0


class Started(msgspec.Struct, frozen=True):
    """A server: until it is ready, and its memory a second later, with that of its workers. What they share counts once."""

    seconds: float
    cpu_s: float
    idle_bytes: int


class Installed(msgspec.Struct, frozen=True):
    """An installation: the bytes of each distribution; a server that has no model, and one with a model of this kind, "" where
    none was tried."""

    distributions: Mapping[str, int]
    empty: Started
    kind: str = ""
    one: Started | None = None

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(self.distributions.values())


class Sizes(msgspec.Struct, frozen=True):
    """The file."""

    date: str
    machine: str
    python: str
    extras: Mapping[str, Installed]


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Install the wheel with this extra and the pinned versions of what it needs into a new environment. Returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "-q"]
    pip += ["-c", str(ROOT / "constraints.txt"), str(wheel) if extra == BASE else f"{wheel}[{extra}]"]
    subprocess.run(pip, check=True)
    return python


def distributions(python: Path) -> dict[str, int]:
    """The bytes of each distribution of an environment, with the bytecode that pip compiles."""
    [folder] = python.parents[1].glob("lib/python*/site-packages")
    found = {}
    for each in importlib.metadata.distributions(path=[str(folder)]):
        files = [Path(str(each.locate_file(file))) for file in each.files or ()]
        found[each.name] = sum(file.stat().st_size for file in files if file.is_file())
    return dict(sorted(found.items()))


def grown(expected: Installed, found: Mapping[str, int]) -> list[str]:
    """Sentences about what an installation has more than expected; none if it has not grown."""
    sentences = []
    if len(found) > len(expected.distributions):
        new = ", ".join(sorted(found.keys() - expected.distributions.keys()))
        sentences.append(f"{len(found)} distributions, expected at most {len(expected.distributions)}; new: {new}")
    size_bytes = sum(found.values())
    if size_bytes > expected.bytes * _ROOM:
        more = {name: size - expected.distributions.get(name, 0) for name, size in found.items()}
        most = sorted(more, key=lambda name: -more[name])[:3]
        shown = ", ".join(f"{name} by {_mb(more[name])}" for name in most if more[name] > 0)
        sentences.append(f"{_mb(size_bytes)}, expected at most {_mb(expected.bytes * _ROOM)}; grown: {shown}")
    return sentences


def page(sizes: Sizes) -> str:
    """The page of the reference."""
    base = sizes.extras[BASE]
    largest = sorted(base.distributions.items(), key=lambda each: -each[1])[:6]
    rows = [_row(extra, sizes.extras[extra], base) for extra in EXTRAS if extra in sizes.extras]
    left_out = "; ".join(f"`{extra}` ({why})" for extra, why in LEFT_OUT.items())
    return f"""# Install sizes

<!-- made by python -m release.install_sizes -->

tpy alone is {len(base.distributions)} packages and {_mb(base.bytes)}. Its server is ready after {base.empty.cpu_s:.1f} s of
CPU time and takes {_mb(base.empty.idle_bytes)} of memory while idle. An extra adds what its row says on disk, and nothing to a
server that has no model for it.

| installed | packages | on disk | ready, CPU time | idle memory | with one model | ready, CPU time | idle memory |
|---|--:|--:|--:|--:|---|--:|--:|
{chr(10).join(rows)}

The largest packages of tpy alone: {", ".join(f"{name} {_mb(size)}" for name, size in largest)}.

Measured on {sizes.date} with Python {sizes.python} on {sizes.machine}: the wheel and the versions of `constraints.txt`, installed
by pip into a new environment. Sizes include the bytecode that pip compiles. A server is started {_STARTS} times after one start
that does not count, and the median is shown; CPU times differ by a fifth from one measurement to the next. Memory is the
proportional set size of all processes, a second after the server is ready.

Not measured: {left_out}.

CI installs the wheel without extras and fails when that brings a package more than the table has, or a tenth more bytes, and
names them. `python -m release.install_sizes --extra base` measures it anew.
"""


def _row(extra: str, installed: Installed, base: Installed) -> str:
    name = OURS if extra == BASE else f"`{extra}`"
    count, size = len(installed.distributions), installed.bytes
    if extra != BASE:
        more = count - len(base.distributions)
        packages, disk = f"+{more}", f"+{_mb(size - base.bytes)}"
    else:
        packages, disk = f"{count}", _mb(size)
    one = ["", "", ""] if installed.one is None else [installed.kind, *_shown(installed.one)]
    return f"| {' | '.join([name, packages, disk, *_shown(installed.empty), *one])} |".replace("  |", " |")


def _shown(started: Started) -> list[str]:
    return [f"{started.cpu_s:.1f} s", _mb(started.idle_bytes)]


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.0f} MB" if size_bytes >= 10e6 else f"{size_bytes / 1e6:,.1f} MB"


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The server of an environment, with its default settings."""

    python: Path
    repository: Path
    name: str = "tpy"
    ready_path: str = SERVER_READY

    def command(self, ports: Ports) -> Sequence[str]:
        listen = [f"--http-address={HOST}", f"--grpc-address={HOST}", f"--http-port={ports.http}"]
        listen += [f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
        return [str(self.python.with_name("tpy")), "serve", f"--model-repository={self.repository}", *listen]

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": ""}


def _start(python: Path, repository: Path, log: Path) -> Started:
    """The median of some starts, after one that fills the system's caches."""
    found = []
    for number in range(_STARTS + 1):
        with running(_Plan(python=python, repository=repository), log) as server:
            cpu_s = server.cpu_s()
            time.sleep(_SETTLE_S)
            if number:
                found.append(Started(server.ready_s - server.started_s, cpu_s, sum(map(_proportional_bytes, server.family()))))
    middle = [
        round(statistics.median(values), 2) for values in ([each.seconds for each in found], [each.cpu_s for each in found])
    ]
    return Started(*middle, int(statistics.median([each.idle_bytes for each in found])))


def _proportional_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("Pss:")]
    return int(kilobytes) * 1024


def _write_model(extra: str, python: Path, repository: Path) -> str:
    """Write a model that needs this extra. Returns its kind, "" where none is tried."""
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    match extra:
        case "base":
            text = "class TritonPythonModel:\n    def execute(self, requests):\n        return [None for _ in requests]\n"
            (version / "model.py").write_text(text)
            tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: [ 1 ] }}'
            config = f'backend: "python"\ninput [ {tensor.format("X")} ]\noutput [ {tensor.format("Y")} ]\n'
            (version.parent / "config.pbtxt").write_text(config)
            return "a Python model"
        case "cpu" | "openvino":
            (version / "model.onnx").write_bytes(_onnx_identity())
            backend = "onnxruntime" if extra == "cpu" else "openvino"
            (version.parent / "config.pbtxt").write_text(f'backend: "{backend}"\n')
            return "ONNX"
        case "sklearn":
            code = "import sys; from skops import io; from sklearn.linear_model import LinearRegression as L; "
            code += "io.dump(L().fit([[0.0], [1.0]], [0.0, 2.0]), sys.argv[1])"
            subprocess.run([str(python), "-c", code, str(version / "model.skops")], check=True)
            (version.parent / "config.pbtxt").write_text('backend: "sklearn"\n')
            return "an estimator"
        case _:
            return ""


def _onnx_identity() -> bytes:
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("X", "Y")]
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "graph", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    return bytes(model.SerializeToString())


def measure(wheel: Path, extra: str) -> Installed:
    """Install it, and start its server."""
    with tempfile.TemporaryDirectory(prefix="tpy-sizes-") as scratch:
        folder = Path(scratch)
        python = install(wheel, extra, folder / "environment")
        sizes = distributions(python)
        (folder / "none").mkdir()
        empty = _start(python, folder / "none", folder / "log")
        kind = _write_model(extra, python, folder / "models")
        one = _start(python, folder / "models", folder / "log") if kind else None
        return Installed(sizes, empty, kind, one)


def build(to: Path, *, compiled: bool) -> Path:
    """The wheel of the files as they are, with compiled parts or without."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(to)]
    environment = {**os.environ, "TPY_WHEEL_WITH_LIBRARY": "1" if compiled else ""}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    [wheel] = to.glob("*.whl")
    return wheel


def read() -> Sizes:
    """The file as it is."""
    return msgspec.json.decode(DATA.read_bytes(), type=Sizes)


def check(extras: Sequence[str]) -> list[str]:
    """Install the wheel with each of these. Returns what has grown since the file was written."""
    faults = []
    for extra in extras:
        with tempfile.TemporaryDirectory(prefix="tpy-sizes-") as scratch:
            wheel = build(Path(scratch) / "wheel", compiled=False)
            found = distributions(install(wheel, extra, Path(scratch) / "environment"))
        faults += [f"{extra}: {fault}" for fault in grown(read().extras[extra], found)]
    return faults


def main() -> int:
    """Measure what the command line names, or all; or compare, or print the page. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.install_sizes", description=__doc__)
    parser.add_argument("--extra", action="append", choices=EXTRAS, help="only this (again for more)")
    parser.add_argument("--page", action="store_true", help="measure nothing: print the page")
    parser.add_argument("--check", action="store_true", help="write nothing: name what has grown, and exit with 1")
    given = parser.parse_args()
    if given.page:
        sys.stdout.write(page(read()))
        return 0
    if given.check:
        faults = check(given.extra or EXTRAS)
        print("\n".join(faults or ["nothing has grown"]))
        return 1 if faults else 0
    known = dict(read().extras) if given.extra and DATA.exists() else {}
    with tempfile.TemporaryDirectory(prefix="tpy-sizes-wheel-") as scratch:
        wheel = build(Path(scratch), compiled=True)
        for extra in given.extra or EXTRAS:
            known[extra] = measure(wheel, extra)
            print(_row(extra, known[extra], known[BASE]), flush=True)
    sizes = Sizes(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        machine=f"{len(os.sched_getaffinity(0))} cores of {processor()} ({platform.machine()})",
        python=platform.python_version(),
        extras={extra: known[extra] for extra in EXTRAS if extra in known},
    )
    DATA.write_bytes(msgspec.json.format(msgspec.json.encode(sizes), indent=1) + b"\n")
    PAGE.write_text(page(sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
