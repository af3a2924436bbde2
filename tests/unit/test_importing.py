"""Imports of the programs: without garbage collections, interrupted, and no more than a server needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import onnx_models

LINES_MAX = 47_420
"""Of ours, in the modules of a server with one ONNX model: a third of 142,260. It may fall."""

CPU_S_MAX = 1.5
"""CPU time of such a server until its ports are open: five times what was measured. Machines differ by a factor of two, and a
busy one takes half as much again."""

MEMORY_MB_MAX = 60
"""Memory of a server without a model, which has no ONNX Runtime in it: PSS. Machines differ little."""

NOT_NEEDED = (
    "tpy.embedded",
    "tpy_platforms.openai",
    "tpy_platforms.sagemaker",
    "tpy_platforms.mlflow",
    "tpy_platforms.tensorflow_serving",
    "tpy_platforms.torchserve",
    "tpy_platforms.vertex_ai",
    "tpy.ray",
    "tpy.remote",
    "tpy_cloud",
    "tpy_data.agents.hosting",
    "tpy_data.backends.isolated",
    "tpy_native",
    "tpy_page",
    "tpy_data.backends.python",
    "tpy.tenants",
    "tpy_data.engine.budget",
    "tpy_data.engine.ensembles",
    "tpy_data.engine.explanation.core.advice",
    "tpy_data.engine.memory",
    "tpy_data.engine.runtimes.on_demand_runtime",
    "tpy_data.engine.tenancy",
    "tpy_data.schedulers.core.fair_queue",
    "tpy_data.schedulers.core.tenants",
    "tpy_tools",
    "tpy.auditing",
    "tpy.config.validation.ensemble_members",
    "tpy.config.validation.ensembles",
    "tpy.config.validation.sequences",
    "tpy.devices.cuda",
    "tpy.frontends.access.gate",
    "tpy.frontends.core.proxy_header",
    "tpy.frontends.grpc.control",
    "tpy.frontends.grpc.health",
    "tpy.frontends.grpc.reflection",
    "tpy.frontends.grpc.stream",
    "tpy.frontends.http.app",
    "tpy.frontends.http.openapi",
    "tpy.frontends.http.quart_bridge",
    "tpy.frontends.transport.tls",
    "tpy.frontends.transport.tls_wire",
    "tpy.recording",
    "tpy.telemetry.traces.tracer",
    "tpy_control.agents.lifecycles",
    "tpy_control.check",
    "tpy_data.cache.core",
    "tpy_data.cache.local",
    "tpy_data.engine.caching.cached_engine",
    "tpy_data.engine.channels.process_channel",
    "tpy_data.engine.channels.rate_limiter",
    "tpy_data.engine.rollouts.rollouts",
    "tpy_data.engine.sequences.sequences",
    "tpy_data.engine.tuning",
    "tpy_data.onnx_graph",
    "tpy_data.schedulers.core.sequence_core",
    *("hypercorn", "jinja2", "quart", "quart_trio", "werkzeug"),
    *("cryptography", "jwt", "opentelemetry", "prometheus_client", "redis", "rich"),
)
"""Modules and packages that a server with one ONNX model has no use for."""

PORTS = [f"--{each}-port=0" for each in ("http", "grpc", "metrics")]

_CODE = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "tpy.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
import tpy.cli
"""


_START = """
import gc

def stop():
    print(gc.isenabled(), [each["collections"] for each in gc.get_stats()] == before)
    raise SystemExit

gc.freeze = stop  # the first thing that a command does when all is imported
from tpy.__main__ import {program}
before = [each["collections"] for each in gc.get_stats()]
{program}()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one ONNX model."""
    (tmp_path / "gathering/1").mkdir(parents=True)
    (tmp_path / "gathering/1/model.onnx").write_bytes(onnx_models.gathering())
    return tmp_path


@pytest.mark.parametrize(("program", "command"), [("main", ["serve"]), ("tritonserver", []), ("main", ["doctor"])])
def test_modules_are_not_walked_while_they_are_imported(program: str, command: list[str], tmp_path: Path) -> None:
    code = _START.format(program=program)
    ended = subprocess.run(
        [sys.executable, "-c", code, *command, *([] if "doctor" in command else ["--model-repository", str(tmp_path)])],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.stdout.split() == ["False", "True"], ended.stderr


def test_a_command_collects_garbage(tmp_path: Path) -> None:
    code = (
        "import gc, atexit, sys; atexit.register(lambda: print('enabled', gc.isenabled())); from tpy.__main__ import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "check", str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.stdout.splitlines()[-1] == "enabled True"


def test_an_interrupt_during_the_imports_is_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")


_SERVE = """
import atexit, sys
from tpy.__main__ import main

OURS = "tpy tpy_backends tpy_cloud tpy_control tpy_data tpy_native tpy_page tpy_platforms tpy_tools".split()

def tell():
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        own = name.partition(".")[0] in OURS and path.endswith(".py")
        print("imported", name, len(open(path).readlines()) if own else 0)

atexit.register(tell)
main()
"""


def test_a_server_with_one_model_imports_what_it_needs(repository: Path) -> None:
    command = [sys.executable, "-c", _SERVE, "serve", "--model-repository", str(repository), *PORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("Started HTTPService" in line for line in process.stderr), "it ends before it serves"
        process.terminate()
        output, _ = process.communicate(timeout=60)
    imported = {name: int(lines) for name, lines in re.findall(r"^imported (\S+) (\d+)$", output, re.MULTILINE)}
    assert "tpy_backends.onnxruntime.session" in imported
    assert [name for name in imported if name.startswith(tuple(f"{each}." for each in NOT_NEEDED)) or name in NOT_NEEDED] == []
    assert sum(imported.values()) <= LINES_MAX


def _started(folder: Path) -> tuple[float, float]:
    """Starts a server, and returns its CPU time in seconds and its memory in MB when its ports are open."""
    command = [sys.executable, "-m", "tpy", "serve", "--model-repository", str(folder), *PORTS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any("Started Metrics Service" in line for line in process.stderr), "it ends before it serves"
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            found = re.search(r"^Pss: +(\d+) kB$", Path(f"/proc/{process.pid}/smaps_rollup").read_text(), re.MULTILINE)
            assert found is not None
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(found[1]) / 1024
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_a_server_with_one_model_starts_in_little_cpu_time(repository: Path) -> None:
    assert min(_started(repository)[0] for _ in range(3)) <= CPU_S_MAX  # the first one may have to compile


def test_an_idle_server_has_little_memory(tmp_path: Path) -> None:
    assert _started(tmp_path)[1] <= MEMORY_MB_MAX


_LOAD = """
import sys
from tpy.frontends.table import frontends
for name in ("http", "grpc"):
    frontends()[name].{load}()
print({{"quart", "tpy.frontends.grpc.control", "tpy.frontends.http.app"}} <= sys.modules.keys())
"""


@pytest.mark.parametrize(("load", "shares"), [("load", "False"), ("load_all", "True")])
def test_processes_that_are_forked_share_what_is_imported_late(load: str, shares: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", _LOAD.format(load=load)], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == shares
