"""A backend whose instances are hosted by workers, and its loaded models."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tpy.backend import (
    BackendCapabilities,
    BackendSettings,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.config import ModelConfig
from tpy.errors import Unsupported
from tpy.scratch import ScratchDirectory
from tpy_data.backends.creation import BackendOrigin
from tpy_data.backends.python.backend import execute_limit_s, implicit_state, is_iterative, start_instance
from tpy_data.backends.python.environment.interpreters import Environments, Interpreter
from tpy_data.backends.python.environment.process import Spawner
from tpy_data.backends.python.instance.loading import StartedWorker
from tpy_data.backends.python.instance.start import WorkerStart
from tpy_data.backends.python.protocol.messages import decode_text
from tpy_data.backends.python.sandboxing import Sandbox, calls_of, sandbox_of
from tpy_data.backends.python.settings import PythonSettings, read_settings
from tpy_data.backends.python.worker.hosting.order import HostedContext, HostingAnswer, HostingOrder, decode_answer, pack, unpack
from tpy_data.backends.python.worker.model.loader import ModelSource
from tpy_data.backends.states import ImplicitState

Log = Callable[[str, str], None]


class Hosts:
    """Starts workers that host one backend. Any thread."""

    def __init__(self, origin: BackendOrigin, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._limits: PythonSettings = read_settings(settings.config)
        self._origin = origin
        self._settings = settings
        self._spawner = Spawner(hosts_backends=True)
        self._environments = Environments()
        self._packages = _ServersPackages(origin)

    def order(self, context: ModelContext | None, placement: InstancePlacement | None = None) -> str:
        """The packed order for a model, or, without, for the backend alone."""
        settings = self._settings
        return pack(
            HostingOrder(
                origin=self._origin,
                backend=settings.name,
                settings=dict(settings.config),
                directory=None if settings.backend_directory is None else str(settings.backend_directory),
                library=None if settings.library is None else str(settings.library),
                context=None if context is None else _crossing(context),
                placement=placement,
            )
        )

    def ask(self, name: str, context: ModelContext | None, log: Log) -> HostingAnswer:
        """Has a worker that ends with it say what the backend is capable of, and complete the model's configuration. Raises
        what the backend raises, and Internal for a worker that dies or takes too long."""
        interpreter, source = self.runs_with(context)
        start = WorkerStart(
            name=name,
            mode="auto_complete",
            source=source,
            directory="" if context is None else str(context.version_directory),
            interpreter=interpreter,
            hosting=self.order(context),
            sandbox=None if context is None else self.sandbox(context, source),
        )
        worker = StartedWorker(start, self._limits, self._spawner, log)
        worker.stop(self._limits.finalize_timeout_s)
        return unpack(decode_text(worker.loaded), decode_answer)

    def sandbox(self, context: ModelContext, source: ModelSource) -> Sandbox | None:
        """The sandbox of a model's workers, which read what hosts the backend, too. Raises as `sandbox_of`."""
        settings = self._settings
        folders = (settings.backend_directory, None if settings.library is None else settings.library.parent)
        return sandbox_of(context, settings.config, (*source.search_path, *(str(each) for each in folders if each is not None)))

    def runs_with(self, context: ModelContext | None) -> tuple[Interpreter, ModelSource]:
        """The interpreter of a worker, and where that finds the server's packages: the server's own, or that of the model's
        EXECUTION_ENV_PATH. Raises as `Environments.interpreter`."""
        interpreter = Interpreter(executable=sys.executable) if context is None else self._environments.interpreter(context)
        path = tuple(sys.path) if interpreter.executable == sys.executable else (self._packages.folder(),)
        return interpreter, ModelSource("", "", "", path)

    def instance(
        self, start: WorkerStart, log: Log, *, state: ImplicitState | None, execute_limit_s: float | None
    ) -> ModelInstance:
        """A worker with one instance. Raises as `start_instance`."""
        return start_instance(start, self._limits, self._spawner, log, state=state, execute_limit_s=execute_limit_s)

    def close(self) -> None:
        """No more workers."""
        self._spawner.close()
        self._environments.close()
        self._packages.close()


class IsolatedBackend:
    """A `Backend`. What the one that it stands for would do in the server's process is done in workers: saying what it is
    capable of and completing configurations in one that ends with it, loading and executing in one for each instance."""

    def __init__(self, origin: BackendOrigin, settings: BackendSettings, log: Log) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._name = settings.name
        self._hosts = Hosts(origin, settings)
        self._log = log
        self._describing = threading.Lock()
        self._capabilities: BackendCapabilities | None = None

    @property
    def capabilities(self) -> BackendCapabilities:
        """Asked for once. Raises Unavailable when the backend cannot be imported, and whatever else its factory raises."""
        with self._describing:
            if self._capabilities is None:
                self._capabilities = self._hosts.ask(f"{self._name}_capabilities", None, self._log).capabilities
            return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """As the backend does it. Raises what it raises."""
        answer = self._hosts.ask(f"{context.name}_{context.version}_auto_complete", context, context.log)
        return context.config if answer.config is None else answer.config

    def load(self, context: ModelContext) -> LoadedModel:
        """Loads nothing: each instance's worker does. Raises InvalidArgument for a wrong time limit."""
        return IsolatedModel(context, self._hosts)

    def close(self) -> None:
        """Ends the spawner."""
        self._hosts.close()


class IsolatedModel:
    """A `LoadedModel` whose instances share nothing."""

    def __init__(self, context: ModelContext, hosts: Hosts) -> None:
        if context.config.decoupled and implicit_state(context.config) is not None:
            raise Unsupported(f"model '{context.name}': implicit state of a decoupled model is not supported in a worker process")
        self.copies_inputs = True
        """As `tpy.backend.CopiesInputs`: into memory that is shared with the worker."""
        self._context = context
        self._hosts = hosts
        self._execute_limit_s = execute_limit_s(context.config)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Has a worker load the model and make an instance of it. Raises what the backend raises, and Internal for a worker that
        dies or takes too long."""
        context = self._context

        def log(level: str, text: str) -> None:
            context.log(level, f"{placement.name}: {text}")

        interpreter, source = self._hosts.runs_with(context)
        sandbox = self._hosts.sandbox(context, source)
        start = WorkerStart(
            name=placement.name,
            mode="instance",
            source=source,
            directory=str(context.version_directory),
            interpreter=interpreter,
            output_names=tuple(output.name for output in context.config.output),
            decoupled=context.config.decoupled,
            iterative=is_iterative(context.config),
            host=placement.host,
            metrics=context.metrics,
            server=calls_of(sandbox, context.server),
            sandbox=sandbox,
            hosting=self._hosts.order(context, placement),
        )
        return self._hosts.instance(start, log, state=implicit_state(context.config), execute_limit_s=self._execute_limit_s)

    def unload(self) -> None:
        """Nothing is loaded but in the instances' workers."""


_HOSTING = ("tpy", "tpy_data", "msgspec", "ml_dtypes", "typing_extensions", "google.protobuf", "google._upb")
"""The packages that host a backend, but numpy, which every environment of a model has."""


class _ServersPackages:
    """A folder with links to the packages that host a backend, for interpreters of other environments: they have their own
    packages, which come first, and must not find all of the server's. Any thread."""

    def __init__(self, origin: BackendOrigin) -> None:
        module = origin.entry_point.partition(":")[0].partition(".")[0]
        self._names = dict.fromkeys((*_HOSTING, module))
        self._lock = threading.Lock()
        self._scratch: ScratchDirectory | None = None

    def folder(self) -> str:
        """Made when it is needed first."""
        with self._lock:
            if self._scratch is None:
                scratch = ScratchDirectory("tpy-packages-")
                for name in self._names:
                    found = importlib.util.find_spec(name)
                    place = None if found is None else next(iter(found.submodule_search_locations or ()), found.origin)
                    if place is not None:
                        link = scratch.path.joinpath(*name.split(".")[:-1], Path(place).name)
                        link.parent.mkdir(exist_ok=True)
                        link.symlink_to(Path(place).absolute())
                self._scratch = scratch
            return str(self._scratch.path)

    def close(self) -> None:
        """No worker may run with them any more."""
        with self._lock:
            scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.remove()


def _crossing(context: ModelContext) -> HostedContext:
    return HostedContext(
        name=context.name,
        version=context.version,
        generation=context.generation,
        config=context.config,
        model_directory=str(context.model_directory.absolute()),
        version_directory=str(context.version_directory.absolute()),
        server_id=context.server_id,
    )
