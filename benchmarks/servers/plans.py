"""Plans for starting tpy, Triton, MLServer, a server made with grpclib, and the least that a server can do."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.servers.peers import Triton
from benchmarks.servers.process import HOST, SERVER_READY, Ports


class TpyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """tpy from the environment that runs this program, on a model repository, with its default settings."""

    repository: Path
    flags: tuple[str, ...] = ()
    name: str = "tpy"
    ready_path: str = SERVER_READY

    def command(self, ports: Ports) -> Sequence[str]:
        program = Path(sys.executable).parent / "tpy"
        listen = [f"--http-address={HOST}", f"--grpc-address={HOST}", f"--http-port={ports.http}"]
        listen += [f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
        return [str(program), "serve", f"--model-repository={self.repository}", *listen, *self.flags]

    def environment(self) -> Mapping[str, str]:
        return {}


class TritonPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The real Triton on a model repository, with its default settings."""

    triton: Triton
    repository: Path
    flags: tuple[str, ...] = ()
    name: str = "triton"
    ready_path: str = SERVER_READY

    def command(self, ports: Ports) -> Sequence[str]:
        folder = self.triton.folder
        listen = [f"--http-address={HOST}", f"--grpc-address={HOST}", f"--http-port={ports.http}"]
        listen += [f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
        folders = [f"--backend-directory={folder / 'backends'}", f"--cache-directory={folder / 'caches'}"]
        return [str(folder / "bin" / "tritonserver"), f"--model-repository={self.repository}", *folders, *listen, *self.flags]

    def environment(self) -> Mapping[str, str]:
        binaries = self.triton.environment / "bin"
        return {
            "VIRTUAL_ENV": str(self.triton.environment),
            "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": self.triton.library_path(),
        }


class MlserverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """MLServer on a folder that holds the model `model`. Settings that are not its defaults: no debug logging, because it would
    log every request, which the others do not; and the model runs inside the server, because its worker processes fail to start
    with current releases of uvloop."""

    program: Path
    repository: Path
    model: str
    name: str = "mlserver"

    @property
    def ready_path(self) -> str:
        """It reports itself ready before its model is."""
        return f"/v2/models/{self.model}/ready"

    def command(self, ports: Ports) -> Sequence[str]:
        settings = {
            "debug": False,
            "parallel_workers": 0,
            "host": HOST,
            "http_port": ports.http,
            "grpc_port": ports.grpc,
            "metrics_port": ports.metrics,
            "metrics_dir": str(self.repository / ".metrics"),
            "environments_dir": str(self.repository / ".envs"),
        }
        (self.repository / "settings.json").write_text(json.dumps(settings))
        return [str(self.program), "start", str(self.repository)]

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self.repository)}


class GrpclibPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Stock grpclib on asyncio, from the environment that runs this program."""

    name: str = "grpclib"
    ready_path: str = SERVER_READY

    def command(self, ports: Ports) -> Sequence[str]:
        return [sys.executable, str(Path(__file__).with_name("grpclib_peer.py")), str(ports.http), str(ports.grpc)]

    def environment(self) -> Mapping[str, str]:
        return {}


class FloorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The loop in C (floor.c), compiled to `program`; with `worker` its numbers pass through a second process."""

    program: Path
    worker: bool = False
    ready_path: str = SERVER_READY

    @property
    def name(self) -> str:
        return "C loop and worker" if self.worker else "C loop"

    def command(self, ports: Ports) -> Sequence[str]:
        return [str(self.program), str(ports.http), *(["worker"] if self.worker else [])]

    def environment(self) -> Mapping[str, str]:
        return {}
