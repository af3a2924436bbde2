"""Server: a whole server in a program."""

from __future__ import annotations

import inspect
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio.to_thread
import orjson

from tpy.assembly import ServerOptions
from tpy.cli.flags import FLAG_BY_NAME
from tpy.cli.parsing import UsageError, collect
from tpy.cli.serve import visible_gpus
from tpy.cli.serve_options import server_options
from tpy.clock import SystemClock
from tpy.embedded.engine_thread import EngineThread
from tpy.embedded.functions import TensorSpec, write_model
from tpy.embedded.model import Model
from tpy.embedded.options import is_text
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.messages import IndexEntry, LoadRequest, ModelStatistics
from tpy_data.backends.function import FUNCTIONS, Function, executing

OptionValue = str | int | float | bool | Path | Sequence[str]

_PORTS = {"http": "allow_http", "grpc": "allow_grpc", "metrics": "allow_metrics"}


class Server:
    """A server with the models of `model_repository` (a folder or several), for a program.

    `options` are the flags of `tpy serve` with underscores: `http_port=8000, load_model=["a", "b"], backend_config=[...]`. Unlike
    the command, it opens a port only if one of its flags is given (`http_port=8000`, `allow_grpc=True`). The models of the
    repository are loaded at the start, and others on request (`model_control_mode="explicit"`), unless `load_model` or
    `model_control_mode` says otherwise. It logs to the program's loggers `tpy`, `tpy_control` and `tpy_data`.

    Use it as `with Server(...) as server` or `async with`, or call `start` and `stop`. Every method may be called from any thread
    and blocks it; `Model`'s methods have forms for asyncio and Trio. Raises TpyError: InvalidArgument for an unknown option or a
    wrong value, Unavailable when the server cannot start, has stopped, or runs in another process.
    """

    def __init__(self, model_repository: str | Path | Sequence[str | Path] = (), **options: OptionValue) -> None:
        folders = [model_repository] if isinstance(model_repository, str | Path) else list(model_repository)
        self._process = os.getpid()
        self._own: Path | None = None
        self._given = _texts({**_DEFAULTS, **_ports(options), **options})
        if "load_model" not in options and "model_control_mode" not in options:
            self._given["load_model"] = ("*",)
        self._given["model_repository"] = tuple(map(str, folders))
        self._functions: list[tuple[str, int]] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_given_up = False
        self._engine: EngineThread | None = None

    def start(self) -> Self:
        """Start, and return when the models of the start serve. Raises what prevents it, after which it may be tried again; a
        server that has started does not start again."""
        if self._engine is not None or self._is_given_up:
            raise Unavailable("the server was started already: make another one")
        own = self._own_repository()
        repositories = (*self._given["model_repository"], str(own))
        try:
            values, warnings = collect({**self._given, "model_repository": repositories}, {})
            options = server_options(values, warnings, os.environ)
        except UsageError as error:
            raise InvalidArgument(str(error)) from None
        engine = self._open_engine(options)
        self._removal.detach()
        weakref.finalize(engine, _remove, own, self._process)  # it needs the folder, also when the program drops this object
        with self._lock:
            self._engine = engine
            is_wanted = not self._is_given_up
        if not is_wanted:
            self.stop()
        return self

    def _open_engine(self, options: ServerOptions) -> EngineThread:
        return EngineThread(options, gpus=visible_gpus())

    def stop(self) -> None:
        """Stop in order: requests in flight are answered until `exit_timeout_secs` are over. Idempotent. Raises Internal in a
        function that is a model of this server, whose end it would wait for."""
        if any(key.startswith(f"{self._own}/") for key in executing()):
            raise Internal("a model of this server cannot stop it: the stop waits for the model. Have another thread do it")
        with self._lock:
            self._is_given_up = True
        try:
            if self._engine is not None:
                self._engine.stop()
        finally:
            self._clean_up()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            return await anyio.to_thread.run_sync(self.start)
        except BaseException:
            with self._lock:
                self._is_given_up = True  # a task of asyncio that is cancelled does not wait for its thread
                engine = self._engine
            if engine is not None:
                engine.ask_stop("the start was cancelled")
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of the ports that are open, by name ("HTTP", "gRPC", "metrics")."""
        return self._running.addresses

    def model(self, name: str, version: int | None = None) -> Model:
        """Returns the model of this name, for requests."""
        _require_text("the name of a model", name)
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            raise InvalidArgument(f"model '{name}': expected a version from 1 on, or None, got {version!r}")
        return Model(self._running, SystemClock().now_ns, name, version)

    def ready(self) -> bool:
        """Returns True if the server and the models that it is to have are ready."""
        return self._running.run(self._running.services.repository.server_ready)

    def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """The repository index, sorted by name, then version."""
        return self._running.run_async(lambda: self._running.services.repository.index(ready_only=ready_only))

    def load(self, name: str, *, config: Mapping[str, object] | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload a model and return when it serves; `config` and `files` (by `<version>/<name>`) replace the
        repository's. Raises the reason if it fails; Unavailable in any mode but explicit."""
        _require_text("the name of a model", name)
        for path, content in (files or {}).items():
            if not isinstance(path, str) or not isinstance(content, bytes):
                raise InvalidArgument(f"model '{name}': expected files as bytes by '<version>/<name>', got {path!r}: {content!r}")
        try:
            config_json = None if config is None else orjson.dumps(config).decode()
        except TypeError as error:
            raise InvalidArgument(f"model '{name}': expected a configuration that JSON can represent: {error}") from None
        request = LoadRequest(
            model_name=name,
            config_json=config_json,
            files=dict(files or {}),
        )
        self._running.run_async(lambda: self._running.services.repository.load(request))

    def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Stop serving a model; requests in flight finish. Unknown models succeed."""
        self._running.run_async(lambda: self._running.services.repository.unload(name, unload_dependents=unload_dependents))

    def statistics(self, name: str = "", version: int | None = None) -> Sequence[ModelStatistics]:
        """Statistics of all models ("") or one, sorted by name, then version."""
        return self._running.run_async(lambda: self._running.services.diagnostics.statistics(name, version))

    def metrics(self) -> str:
        """All metrics in Prometheus' text format."""
        metrics = self._running.services.metrics
        if metrics is None:
            raise Unavailable("this server has no metrics")
        return self._running.run_async(metrics.page).decode()

    def add_model(
        self,
        name: str,
        function: Function,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        max_batch_size: int = 0,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Serve a function of the program as a model, and return when it serves; before the start: with the start. A model of
        this name is replaced, without a failed request.

        Each of `inputs` and `outputs` is (name, data type, dims): a type of NumPy, `str` or `bytes`, or a word such as "FP32"; -1
        is any size. `function` gets the inputs as keyword arguments (strings as `bytes`) and returns the outputs by name or, in
        order, as a sequence; a single one may stand alone. With `max_batch_size` it gets whole batches: every array has one more
        dimension in front, and concurrent requests are computed together. It runs in a thread of the server, one call at a time;
        more at once by an `instance_group` in `config`, which holds further fields of a model configuration.
        """
        if not callable(function) or any(kind(function) for kind in _NO_FUNCTIONS):
            raise InvalidArgument(f"model '{name}': expected a function that returns its outputs, got {function!r}")
        with self._lock:
            if self._is_given_up:
                raise Unavailable("the server has stopped")
            own = self._own_repository()
            number = next(self._numbers)
            write_model(own, name, self._key(number), inputs, outputs, max_batch_size, config or {})
            FUNCTIONS[self._key(number)] = function
            self._functions.append((name, number))
        if self._engine is not None:
            self.load(name)
            self._forget([each for each in self._functions if each[0] == name and each[1] < number])
        elif "*" not in self._given.get("load_model", ("*",)):
            self._given["load_model"] = (*self._given["load_model"], name)

    def _own_repository(self) -> Path:
        """The folder of the models that are functions."""
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix="tpy-models-"))
            self._removal = weakref.finalize(self, _remove, self._own, self._process)
        return self._own

    def _key(self, number: int) -> str:
        return f"{self._own}/{number}"

    def _forget(self, functions: Sequence[tuple[str, int]]) -> None:
        with self._lock:
            for each in functions:
                if each in self._functions:
                    self._functions.remove(each)
                    FUNCTIONS.pop(self._key(each[1]), None)

    def _clean_up(self) -> None:
        self._forget(tuple(self._functions))
        if self._own is not None:
            _remove(self._own, self._process)

    @property
    def _running(self) -> EngineThread:
        if self._engine is None:
            raise Unavailable("the server was not started: use it in a `with` block, or call start()")
        return self._engine


_NO_FUNCTIONS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

_DEFAULTS: Mapping[str, OptionValue] = {"model_control_mode": "explicit"}


def _require_text(what: str, value: object) -> None:
    if not is_text(value):
        raise InvalidArgument(f"{what}: expected text, got {value!r}")


def _remove(folder: Path, process: int) -> None:
    """Remove the folder, unless this process was forked from the one that it belongs to."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _ports(options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Opens the ports that a flag is given for, and no others."""
    return {allow: any(option.startswith(f"{port}_") for option in options) for port, allow in _PORTS.items()}


def _texts(options: Mapping[str, OptionValue]) -> dict[str, tuple[str, ...]]:
    """The options as the texts of their flags, by field. Raises InvalidArgument for an option without a flag."""
    texts = {}
    for option, value in options.items():
        flag = FLAG_BY_NAME.get(option.replace("_", "-"))
        if flag is None:
            raise InvalidArgument(f"Server() got an option that is not a flag of tpy serve: '{option}'")
        several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        texts[flag.field] = tuple(str(each) for each in several)
    return texts
