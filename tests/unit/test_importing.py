"""Imports of the programs: without garbage collections, and interrupted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends import onnx_models

LINES_MAX = 60_300
"""Of ours, in the modules of a server with one ONNX model: of 138,000. It may fall."""

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
)
"""Modules and packages that a server with one ONNX model has no use for."""

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


def test_a_server_with_one_model_imports_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "gathering/1").mkdir(parents=True)
    (tmp_path / "gathering/1/model.onnx").write_bytes(onnx_models.gathering())
    command = [sys.executable, "-c", _SERVE, "serve", "--model-repository", str(tmp_path)]
    ports = [f"--{each}-port=0" for each in ("http", "grpc", "metrics")]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("Started HTTPService" in line for line in process.stderr), "it ends before it serves"
        process.terminate()
        output, _ = process.communicate(timeout=60)
    imported = {name: int(lines) for name, lines in re.findall(r"^imported (\S+) (\d+)$", output, re.MULTILINE)}
    assert "tpy_backends.onnxruntime.session" in imported
    assert [name for name in imported if name.startswith(tuple(f"{each}." for each in NOT_NEEDED)) or name in NOT_NEEDED] == []
    assert sum(imported.values()) <= LINES_MAX
