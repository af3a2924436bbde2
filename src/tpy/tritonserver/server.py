"""A server, from start to stop, and its repository."""

from __future__ import annotations

import base64
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import trio

from tpy.assembly import ServerOptions
from tpy.cli.serve import visible_gpus
from tpy.embedded.engine_thread import EngineThread
from tpy.embedded.server import Server as EmbeddedServer
from tpy.errors import Unavailable
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.message import HttpRequest
from tpy.messages import LoadRequest
from tpy.services import RegistrationService
from tpy.telemetry.logs import LogController
from tpy.tritonserver.enums import MetricFormat, ModelControlMode
from tpy.tritonserver.errors import InternalError, InvalidArgumentError, UnavailableError, UnsupportedError, as_triton
from tpy.tritonserver.metrics import PROGRAM_METRICS
from tpy.tritonserver.model import Model
from tpy.tritonserver.options import POLL_S, Options, flags_of, log_settings, log_taker, repositories_of

_FILE_PREFIX = "file:"
_UNLOADED = (None, "UNAVAILABLE")
_NOTHING = HttpRequest(method=b"GET", target=b"/", path="/", version="1.1", headers=[], fields={}, keep_alive=True)


class ModelDictionary(dict[Any, Model]):
    """Models by name and version; by a name alone, the newest version of it."""

    def __init__(self, server: Server, models: list[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server
        self._names = {model.name for model in models}

    def __getitem__(self, key: Any) -> Model:
        if key in self:
            return super().__getitem__(key)
        if key in self._names:
            return Model(self._server, key)
        raise KeyError(f"Unknown Model: {key}")


class _Engine(EmbeddedServer):
    """A server with the log and the metrics of this module."""

    def __init__(self, repositories: list[str], logs: LogController | None, flags: Mapping[str, Any]) -> None:
        super().__init__(repositories, **flags)
        self.logs = logs

    def _open_engine(self, options: ServerOptions) -> EngineThread:
        return EngineThread(options, gpus=visible_gpus(), logs=self.logs, custom_metrics=PROGRAM_METRICS)

    @property
    def running(self) -> EngineThread:
        """Its thread."""
        return self._running


class Server:
    """A server in this program. `options`, or these as keywords, are checked by `start`."""

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        self.options = Options(**kwargs) if options is None else options
        self._engine: _Engine | None = None

    def start(self, wait_until_ready: bool = False, polling_interval: float = 0.1, timeout: float | None = None) -> Server:
        """Start, and load the models that the options name. Raises InvalidArgumentError for wrong options and a server that has
        started, InternalError for a repository that is not there, UnavailableError when it is not ready after `timeout`."""
        if self._engine is not None:
            raise InvalidArgumentError("Server already started")
        repositories, flags, settings = repositories_of(self.options), flags_of(self.options), log_settings(self.options)
        if not repositories:
            raise InvalidArgumentError("Model repository must be specified.")
        # No port of this server shows lines of the log.
        logs = None if settings is None else LogController(settings, kept_lines_max=0, taker=log_taker(self.options.log_callback))
        if logs is not None:
            logs.install()
        try:
            with as_triton():
                engine = _Engine(repositories, logs, flags)
                try:
                    engine.start()
                except Unavailable as error:  # Triton's kind of error for a start that fails
                    raise InternalError(error.message) from None
        except BaseException:
            if logs is not None:
                logs.remove()
            raise
        self._engine = engine
        self._finalizer = weakref.finalize(self, _let_go, engine)  # of a server that is dropped
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_ready and not self.ready():
            if end is not None and time.monotonic() > end:
                raise UnavailableError("Timeout before ready")
            threading.Event().wait(polling_interval)
        return self

    def stop(self) -> None:
        """Stop in order: requests in flight are answered. It may be started again."""
        engine, self._engine = self._started, None
        self._finalizer.detach()
        try:
            with as_triton():
                engine.stop()
        finally:
            if engine.logs is not None:
                engine.logs.remove()

    @property
    def is_started(self) -> bool:
        """Between `start` and `stop`."""
        return self._engine is not None

    @property
    def engine(self) -> EngineThread:
        """The thread of the server. Raises InvalidArgumentError before the start and after the stop."""
        return self._started.running

    def ask(self, what: str, **named: Any) -> Any:
        """The document of one of the HTTP protocol's routes."""
        engine = self.engine

        async def ask() -> bytes:
            api = ControlApi(engine.services, threads=trio.CapacityLimiter(1))
            return b"".join((await getattr(api, what)(_NOTHING, **named)).parts)

        with as_triton():
            return orjson.loads(engine.run_async(ask))

    def live(self) -> bool:
        """Returns True while it runs."""
        engine = self.engine
        with as_triton():
            return engine.run(engine.services.repository.server_live)

    def ready(self) -> bool:
        """Returns True if the server and the models that it is to have are ready."""
        engine = self.engine
        with as_triton():
            return engine.run(engine.services.repository.server_ready)

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions."""
        found: dict[str, Any] = self.ask("server_metadata")
        return found

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """All metrics, those of the program among them."""
        if metric_format is not MetricFormat.PROMETHEUS:
            raise InvalidArgumentError(f"unknown metrics format {metric_format!r}")
        if not self.options.metrics:
            raise UnsupportedError("metrics not supported: this server was started with metrics=False")
        with as_triton():
            return self._started.metrics()

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """The model of this name, which is looked for when it is used."""
        return Model(self, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """The models of the repository, and the loaded ones."""
        with as_triton():
            entries = self._started.index(ready_only=exclude_not_ready)
        return ModelDictionary(
            self,
            [
                Model(
                    self,
                    entry.name,
                    -1 if entry.version is None else entry.version,
                    None if entry.state is None else entry.state.value,
                    entry.reason or None,
                )
                for entry in entries
            ],
        )

    def load(self, model_name: str, parameters: Mapping[str, str | int | bool | bytes] | None = None) -> Model:
        """Load or reload a model, and return when it serves. `parameters`: `config`, a configuration as JSON, and files as
        `file:<version>/<name>`."""
        engine = self.engine
        request = _load_request(model_name, parameters or {})
        with as_triton():
            engine.run_async(lambda: engine.services.repository.load(request))
        return self.model(model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Unload a model; with `wait_until_unloaded` until it is, or `timeout` is over."""
        name = model if isinstance(model, str) else model.name
        with as_triton():
            self._started.unload(name, unload_dependents=unload_dependents)
        end = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and not self._is_unloaded(name) and (end is None or time.monotonic() < end):
            threading.Event().wait(polling_interval)

    def poll_model_repository(self) -> None:
        """In mode POLL: return when the server, which looks at its repository by itself, has done so."""
        if self.options.model_control_mode is not ModelControlMode.POLL:
            raise UnavailableError("polling is disabled")
        with as_triton():
            self._started.ready()
        threading.Event().wait(2 * POLL_S)

    def register_model_repository(self, repository_path: str, name_mapping: Mapping[str, str] | None = None) -> None:
        """In mode EXPLICIT: look for models in this folder, too; `name_mapping` has other names for models, by their folders."""
        if not isinstance(repository_path, str | Path):
            raise TypeError(f"repository_path: expected a path, got {repository_path!r}")
        names = dict(name_mapping or {})
        if not all(isinstance(text, str) for pair in names.items() for text in pair):
            raise TypeError(f"name_mapping: expected names by folders, got {name_mapping!r}")
        registration, engine = self._registration, self.engine
        with as_triton():
            engine.run_async(lambda: registration.register(str(repository_path), names))

    def unregister_model_repository(self, repository_path: str) -> None:
        """Look there no more; models that are loaded go on."""
        registration, engine = self._registration, self.engine
        with as_triton():
            engine.run(lambda: registration.unregister(str(repository_path)))

    @property
    def _registration(self) -> RegistrationService:
        found = self.engine.services.registration
        if found is None:
            raise UnsupportedError("repositories cannot be registered here")
        return found

    @property
    def _started(self) -> _Engine:
        if self._engine is None:
            raise InvalidArgumentError("Server not started")
        return self._engine

    def _is_unloaded(self, name: str) -> bool:
        return all(model.state in _UNLOADED for key, model in self.models().items() if key[0] == name)


def _let_go(engine: _Engine) -> None:
    """Have a server that nobody can reach any more stop by itself."""
    engine.running.ask_stop("the program has dropped the server")
    if engine.logs is not None:
        engine.logs.remove()


def _load_request(name: str, parameters: Mapping[str, str | int | bool | bytes]) -> LoadRequest:
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == "config" and isinstance(value, str):
            config = value
        elif key.startswith(_FILE_PREFIX) and isinstance(value, bytes | str):
            files[key.removeprefix(_FILE_PREFIX)] = value if isinstance(value, bytes) else base64.b64decode(value)
        else:
            raise InvalidArgumentError(
                f"load parameter '{key}': expected 'config' as text, or '{_FILE_PREFIX}<version>/<name>' as bytes, got "
                f"{type(value).__name__}"
            )
    return LoadRequest(model_name=name, config_json=config, files=files)
