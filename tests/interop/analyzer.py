"""Model Analyzer: searches that change models while perf_analyzer asks them."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .repository import MORE
from .trial import Command, Setting

NOTE = (
    "`0:GPU` in reports is what the search itself wrote (`KIND_GPU`, for models without `cpu_only: true`), times no GPUs;"
    " what the server says is reported as `CPU`"
)

_SECONDS_MAX = 200.0
_BRIEF = {"measurement-interval": 500, "stability-percentage": 500, "max-trials": 3}

_ONE = {
    "profile_models": {
        "affine": {
            "parameters": {"batch_sizes": [1], "concurrency": [2]},
            "model_config_parameters": {"instance_group": [{"kind": ["KIND_CPU"], "count": [1, 2]}]},
            "perf_analyzer_flags": _BRIEF,
        }
    }
}

_ENSEMBLE = {
    "profile_models": {"affine_twice": {"perf_analyzer_flags": _BRIEF, "cpu_only": True}},
    "cpu_only_composing_models": ["affine", "affine_again"],
    "run_config_search_mode": "quick",
    "run_config_search_max_instance_count": 2,
    "run_config_search_max_concurrency": 2,
    "run_config_search_max_model_batch_size": 2,
}


def remote_http(setting: Setting) -> Sequence[Command]:
    """Two configurations of a model."""
    return (_profile(setting, _ONE, r"affine,1,2,affine_config_1,2:CPU", "remote", _remote(setting), "--client-protocol=http"),)


def remote_grpc(setting: Setting) -> Sequence[Command]:
    """The same over gRPC."""
    return (_profile(setting, _ONE, r"affine,1,2,affine_config_1,2:CPU", "remote", _remote(setting), "--client-protocol=grpc"),)


def ensemble(setting: Setting) -> Sequence[Command]:
    """Configurations of the members of an ensemble."""
    return (
        _profile(
            setting,
            _ENSEMBLE,
            r'affine_twice,1,\d+,"affine_twice_config_\d',
            "remote",
            _remote(setting),
            "--client-protocol=grpc",
        ),
    )


def local(setting: Setting) -> Sequence[Command]:
    """The server is started, and stopped, for each configuration."""
    http, grpc, metrics = _free_ports(3)
    return (_profile(setting, _ONE, r"affine,1,2,affine_config_1,2:CPU", "local", (http, grpc, metrics)),)


def _remote(setting: Setting) -> tuple[str, str, str]:
    return setting.http, setting.grpc, setting.metrics


def _profile(
    setting: Setting, configuration: dict[str, Any], expected: str, mode: str, addresses: tuple[str, str, str], *flags: str
) -> Command:
    """`model-analyzer profile`, and then its table of results."""
    program = setting.tools.python("model-analyzer", "triton-model-analyzer").parent / "model-analyzer"
    http, grpc, metrics = addresses
    folder = setting.folder
    given = folder / "search.json"
    given.write_text(json.dumps(configuration))
    for name in ("export", "checkpoints"):
        (folder / name).mkdir()
    command = [
        str(program),
        "profile",
        f"--config-file={given}",
        f"--triton-launch-mode={mode}",
        f"--model-repository={setting.models / MORE}",
        f"--output-model-repository-path={folder / 'output'}",
        f"--export-path={folder / 'export'}",
        f"--checkpoint-directory={folder / 'checkpoints'}",
        f"--triton-http-endpoint={http}",
        f"--triton-grpc-endpoint={grpc}",
        f"--triton-metrics-url=http://{metrics}/metrics",
        f"--perf-analyzer-path={setting.tools.perf_analyzer()}",
        f"--triton-server-path={_tritonserver()}",
        *flags,
    ]
    shell = '"$@" && cat ' + str(folder / "export" / "results" / "metrics-model-inference.csv")
    return Command(("sh", "-c", shell, "model-analyzer", *command), expected, _SECONDS_MAX)


def _tritonserver() -> Path:
    """The command of this project, not another one that may be on the PATH."""
    return Path(sys.executable).with_name("tritonserver")


def _free_ports(count: int) -> list[str]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"localhost:{one.getsockname()[1]}" for one in sockets]
