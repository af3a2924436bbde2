"""Measures requests/s and latencies of one small JSON inference: tpy alone; behind Ray's HAProxy and its Python proxy tpy's
application, an empty deployment, and the form of the tutorials. One replica each; rounds alternate over connections, not over
servers, each of which starts a cluster. Then the growth of an application over one to four raylets.

Use: make bench-ray, or in a private network python -m benchmarks.ray [--seconds N] [--results FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.http_exchange import HttpRequest
from benchmarks.load import Load
from benchmarks.load.keep_alive import drive
from tests.ray.serving import BIN, HAPROXY, answers, configure, environment, serving, until

PORT = 8000
CONNECTIONS = (1, 16, 64)
_ROW = {"shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
_BODY = json.dumps({"inputs": [{"name": name, **_ROW} for name in ("INPUT0", "INPUT1")]}).encode()
REQUEST = HttpRequest(path="/v2/models/simple/infer", headers={"Content-Type": "application/json"}, body=_BODY)
SERVERS = (
    "tpy alone",
    "tpy, HAProxy",
    "empty, HAProxy",
    "tutorial, HAProxy",
    "tpy, Python proxy",
    "empty, Python proxy",
    "tutorial, Python proxy",
)
GROWTH = "growth"
_WARM_UP_S = 2.0
_OPTIMISED = {**HAPROXY, "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}


def main() -> None:
    """Measure and print; with --results also write all values."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (8)")
    parser.add_argument("--results", type=Path, help="file for all values, as JSON")
    parser.add_argument("--server", action="append", choices=(*SERVERS, GROWTH), help="only this one; several times for several")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        subprocess.run([sys.executable, "docs/examples/build.py", "first-model", repository], check=True, capture_output=True)
        for server in given.server or (*SERVERS, GROWTH):
            if server == GROWTH:
                rows += _growth(given.seconds)
                continue
            with _served(server, Path(folder) / server.replace(", ", "-").replace(" ", "-"), repository):
                until(lambda: _answers(connections=16, seconds=_WARM_UP_S))  # HAProxy is started anew as replicas come
                for connections in CONNECTIONS:
                    rows.append(_row(server, connections, drive(PORT, REQUEST, connections=connections, seconds=given.seconds)))
                    print(_line(rows[-1]), flush=True)
    if given.results is not None:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()}
        given.results.write_text(json.dumps({"machine": machine, "seconds": given.seconds, "rows": rows}, indent=1) + "\n")


def _growth(seconds: float) -> list[dict[str, Any]]:
    """The rows of `benchmarks.ray.growth`, which has a cluster in its process."""
    command = [sys.executable, "-m", "benchmarks.ray.growth", str(seconds)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows: list[dict[str, Any]] = [json.loads(line) for line in told.splitlines() if line.startswith('{"server"')]
    for row in rows:
        print(_line({**row, "server": f"tpy, {row['raylets']} raylets"}), flush=True)
    return rows


def _row(server: str, connections: int, load: Load) -> dict[str, Any]:
    return {
        "server": server,
        "connections": connections,
        "per_s": round(load.per_s, 1),
        "p50_ms": round(load.latency_p50_ms, 2),
        "p99_ms": round(load.latency_p99_ms, 2),
    }


def _line(row: dict[str, Any]) -> str:
    rate, latencies = f"{row['per_s']:>9} requests/s", f"p50 {row['p50_ms']} ms  p99 {row['p99_ms']} ms"
    return f"{row['server']:<24} {row['connections']:>3} connections {rate}  {latencies}"


@contextmanager
def _served(server: str, folder: Path, repository: Path) -> Iterator[None]:
    folder.mkdir()
    if server == "tpy alone":
        with _alone(repository, folder / "log"):
            yield
        return
    what, _, proxy = server.partition(", ")
    config = configure(folder / "serve.yaml", f"repository={repository}", "cpus=1", f"http_port={PORT}")
    if what != "tpy":
        document = yaml.safe_load(config.read_text())
        builder = "empty" if what == "empty" else "tutorial"
        application = {"name": what, "route_prefix": "/", "import_path": f"benchmarks.ray.deployments:{builder}"}
        if what == "tutorial":
            application["args"] = {"repository": str(repository)}
        document["applications"] = [application]
        config.write_text(yaml.safe_dump(document))
    paths = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH", ""))))
    environ = environment(folder / "home", PYTHONPATH=paths, **(_OPTIMISED if proxy == "HAProxy" else {}))
    with serving(config, folder / "log", environ, f"http://127.0.0.1:{PORT}/-/healthz"):
        until(lambda: _answers(connections=1, seconds=0))
        yield


def _answers(*, connections: int, seconds: float) -> bool:
    try:
        drive(PORT, REQUEST, connections=connections, seconds=seconds)
    except Exception as error:  # not yet
        raise OSError(str(error)) from None
    return True


@contextmanager
def _alone(repository: Path, log: Path) -> Iterator[None]:
    flags = ["--http-address", "127.0.0.1", "--http-port", str(PORT), "--allow-grpc=false", "--allow-metrics=false"]
    with log.open("wb") as output:
        process = subprocess.Popen([BIN / "tpy", "serve", "--model-repository", repository, *flags], stdout=output, stderr=output)
    try:
        until(lambda: answers(f"http://127.0.0.1:{PORT}/v2/models/simple/ready"))
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
