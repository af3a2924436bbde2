"""LitServe, BentoML and Ray Serve: a program for each, with the settings that its documentation names for small requests, and
what starts it. Batches are off: with them such requests took no less of the processor. Each server is looked for in a virtual
environment of its own under $TPY_PEERS: litserve/, bentoml/, ray/.

All take a JSON list of numbers and answer one: the smallest body that there is for it. BentoML is given the list in an object,
for a bare one costs it half as much again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.servers.peers import output_of, peers_folder
from benchmarks.servers.process import HOST, Ports

_LITSERVE = f"""\
import sys

import litserve


class Identity(litserve.LitAPI):
    def setup(self, device):
        pass

    def predict(self, values):
        return values


if __name__ == "__main__":
    server = litserve.LitServer(Identity(), accelerator="cpu", workers_per_device=1, fast_queue=True, timeout=False)
    server.run(
        host="{HOST}",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
"""

_BENTOML = """\
import bentoml


@bentoml.service(workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}}, monitoring={"enabled": False})
class Identity:
    @bentoml.api
    async def infer(self, values: list[float]) -> list[float]:
        return values
"""

_RAY = f"""\
import json
import signal
import sys
import tempfile

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(max_ongoing_requests=1000)
class Empty:
    def __init__(self, answer: list) -> None:
        self._answer = json.dumps(answer).encode()

    async def __call__(self, request: Request) -> Response:
        await request.body()
        return Response(self._answer, media_type="application/json")


signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # short: it holds sockets
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, _node_ip_address="{HOST}")
    try:
        serve.start(http_options={{"host": "{HOST}", "port": int(sys.argv[1])}})
        serve.run(Empty.bind(json.loads(sys.argv[2])), route_prefix="/", logging_config={{"enable_access_log": False}})
        signal.pause()
    finally:
        ray.shutdown()
"""

_SERVED = ("{folder}/served.py", "{port}")
_RAY_OPTIMISED = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
_HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # On a slow machine HAProxy needs longer than the checks allow.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "90",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "90",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "3",
}


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A server: the package that it comes with, the program that is written for it, what Python is started with, where it takes
    requests, under which name it takes the numbers if not as a bare list, and the variables of its settings. `private`: it
    listens on all addresses, so it runs in a private network only."""

    name: str
    package: str
    program: str
    words: tuple[str, ...]
    path: str
    ready_path: str
    key: str = ""
    settings: Mapping[str, str] = {}
    private: bool = False

    @property
    def python(self) -> Path:
        """The interpreter of its virtual environment, whether or not it is there."""
        return peers_folder() / self.package / "bin" / "python"

    def version(self) -> str | None:
        """Its package's version, None where that is not installed."""
        code = f"import importlib.metadata as m; print(m.version('{self.package}'))"
        try:
            return output_of([str(self.python), "-c", code])
        except (OSError, subprocess.SubprocessError):
            return None


PEERS = (
    Peer(name="LitServe", package="litserve", program=_LITSERVE, words=_SERVED, path="/predict", ready_path="/health"),
    Peer(
        name="BentoML",
        package="bentoml",
        program=_BENTOML,
        words=("-m", "bentoml", "serve", "served:Identity", "--working-dir", "{folder}", "--host", HOST, "--port", "{port}"),
        path="/infer",
        ready_path="/readyz",
        key="values",
        settings={"BENTOML_DO_NOT_TRACK": "True"},
    ),
    Peer(
        name="Ray Serve empty, Python proxy",
        package="ray",
        program=_RAY,
        words=(*_SERVED, "{answer}"),
        path="/",
        ready_path="/",
        settings=_RAY_OPTIMISED,
        private=True,
    ),
    Peer(
        name="Ray Serve empty, HAProxy",
        package="ray",
        program=_RAY,
        words=(*_SERVED, "{answer}"),
        path="/",
        ready_path="/",
        settings={**_RAY_OPTIMISED, **_HAPROXY},
        private=True,
    ),
)


def reason_without(peer: Peer, versions: Mapping[str, str], *, private: bool) -> str:
    """Returns the reason to leave a peer out where these packages are installed, "" without one. `private`: the network is."""
    if peer.package not in versions:
        return f"{peer.package} is not installed for {peer.python}"
    if peer.private and not private:
        return "it listens on all addresses, and this network is not private"
    return ""


class PeerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for starting a peer, whose program and files are in `folder`. One that has a constant answer gives `answer`."""

    peer: Peer
    folder: Path
    answer: bytes

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def ready_path(self) -> str:
        return self.peer.ready_path

    def command(self, ports: Ports) -> Sequence[str]:
        self.folder.mkdir(parents=True)
        (self.folder / "served.py").write_text(self.peer.program)
        values = {"folder": self.folder, "port": ports.http, "answer": self.answer.decode()}
        return [str(self.peer.python), *(word.format_map(values) for word in self.peer.words)]

    def environment(self) -> Mapping[str, str]:
        return {**self.peer.settings, "HOME": str(self.folder), "PYTHONPATH": ""}
