"""The server of an analysis: one that it starts, or one that runs. Both load models with other configurations over the
protocol."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import orjson

from tpy.config import ConfigError, ModelConfig, parse_json, to_json
from tpy_tools.analyze.plan import AnalysisError
from tpy_tools.load.links import Target
from tpy_tools.load.local import LocalServer
from tpy_tools.load.server import MeasuredServer, ServerError

_START_S = 120.0
_STOP_S = 60.0
_POLL_S = 0.05
_BYTES_PER_MB = 1e6
_STARTED = re.compile(r"\bStarted (HTTPService|GRPCInferenceService) at ([^\s\"]+):(\d+)")


class ServedModels:
    """The models of a server in mode explicit, over HTTP."""

    def __init__(self, host: str, port: int, headers: Mapping[str, str] | None = None) -> None:
        self.http = Target(host=host, port=port)
        self._server = MeasuredServer(self.http, headers)

    def config(self, model: str) -> ModelConfig | None:
        """The complete configuration of a loaded model, None: it is not loaded. Raises AnalysisError, ServerError."""
        try:
            document = self._server.get(f"/v2/models/{quote(model, safe='')}/config")
        except ServerError as error:
            if not error.status:
                raise
            return None
        try:
            return parse_json(orjson.dumps(document))
        except ConfigError as error:
            raise AnalysisError(f"the configuration of '{model}' cannot be read: {error}") from error

    def load(self, model: str, config: ModelConfig | None = None) -> None:
        """Load a model: as its file says, or with this configuration. Raises ServerError."""
        parameters = {} if config is None else {"parameters": {"config": orjson.dumps(to_json(config)).decode()}}
        self._server.post(f"/v2/repository/models/{quote(model, safe='')}/load", parameters)

    def unload(self, model: str) -> None:
        """Unload a model. Raises ServerError."""
        self._server.post(f"/v2/repository/models/{quote(model, safe='')}/unload", {})

    def memory_mb(self, models: Sequence[str]) -> dict[str, float]:
        """The memory of loaded models by its type, CPU or GPU, as far as the server says it."""
        found: dict[str, float] = {}
        for model in models:
            try:
                document = self._server.get(f"/v2/models/{quote(model, safe='')}/stats")
            except ServerError:
                continue
            for entry in document.get("model_stats", []):
                for usage in entry.get("memory_usage", []):
                    kind = str(usage.get("type", ""))
                    found[kind] = found.get(kind, 0.0) + int(usage.get("byte_size", 0)) / _BYTES_PER_MB
        return found


class OwnServer:
    """`tpy serve` in mode explicit as a child process; its output goes to a file. A context manager."""

    def __init__(
        self, repositories: Sequence[Path], flags: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "tpy", "serve", "--model-control-mode=explicit"),
            *("--http-address=127.0.0.1", "--http-port=0", "--grpc-address=127.0.0.1", "--grpc-port=0"),
            *("--metrics-port=0", *(f"--model-repository={path}" for path in repositories), *flags),
        ]
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        self.empty_bytes = 0
        """Memory of its processes once it serves, without a model."""

    def __enter__(self) -> OwnServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it serves. Raises AnalysisError."""
        begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            # A new session: Ctrl-C reaches the analysis alone, which then stops it.
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, start_new_session=True, env=self._environment
            )
        try:
            self._wait(begin)
        except BaseException:
            self.stop()
            raise
        local = self.local()
        used = None if local is None else local.usage()
        self.empty_bytes = 0 if used is None else used.resident_bytes

    def _wait(self, begin: int) -> None:
        deadline_s = time.monotonic() + _START_S
        while len(self._ports) < 2:
            code = None if self._process is None else self._process.poll()
            written = self._log.read_bytes()[begin:].decode(errors="replace")
            self._ports = {name: int(port) for name, _, port in _STARTED.findall(written)}
            if len(self._ports) < 2 and (code is not None or time.monotonic() > deadline_s):
                lines = [line for line in written.splitlines() if line.strip()]
                reason = "it does not say where it serves" if code is None else f"it ended with {code}"
                raise AnalysisError(f"the server did not start: {reason}: {lines[-1] if lines else ''} (log: {self._log})")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop it in order."""
        process, self._process, self._ports = self._process, None, {}
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def ended(self) -> int | None:
        """The exit code of a server that has ended by itself."""
        return None if self._process is None else self._process.poll()

    @property
    def http_port(self) -> int:
        """Its HTTP port."""
        return self._ports["HTTPService"]

    @property
    def grpc_port(self) -> int:
        """Its gRPC port."""
        return self._ports["GRPCInferenceService"]

    def local(self) -> LocalServer | None:
        """Its processes."""
        return None if self._process is None else LocalServer(self._process.pid)
