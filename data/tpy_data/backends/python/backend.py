"""The backend and its loaded models."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from tpy.backend import (
    ISOLATION,
    BackendCapabilities,
    BackendSettings,
    InstancePlacement,
    Isolation,
    LoadedModel,
    ModelContext,
    ModelInstance,
    isolation_of,
    state_specs,
)
from tpy.config import ModelConfig, normalise_instance_groups
from tpy.config.json_form import parse_json, to_json
from tpy.config.model_config import EXECUTION_ENVIRONMENT, InstanceKind
from tpy.config.problem import ConfigError
from tpy.errors import Internal, InvalidArgument, Unsupported
from tpy.process_output import LogLine
from tpy_data.backends.python.environment.interpreters import Environments
from tpy_data.backends.python.environment.process import Spawner
from tpy_data.backends.python.instance.loading import StartedWorker
from tpy_data.backends.python.instance.process_instance import ProcessInstance
from tpy_data.backends.python.instance.start import InstanceStart, WorkerStart
from tpy_data.backends.python.instance.thread_instance import ThreadInstance
from tpy_data.backends.python.sandboxing import Sandbox, calls_of, refuse_in_thread, sandbox_of
from tpy_data.backends.python.settings import PythonSettings, read_settings
from tpy_data.backends.python.worker.model.loader import ModelSource, forget
from tpy_data.backends.python.worker.pb_utils.context import set_for_package
from tpy_data.backends.states import ImplicitState

DEFAULT_FILENAME = "model.py"
FORCE_HOST_INPUTS = "FORCE_CPU_ONLY_INPUT_TENSORS"
EXECUTE_LIMIT = "TPY_EXECUTE_TIMEOUT_SECONDS"

_KIND_WORDS = {InstanceKind.KIND_CPU: "CPU", InstanceKind.KIND_GPU: "GPU", InstanceKind.KIND_MODEL: "MODEL"}

_COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")
"""The fields that auto_complete_config may change; others are ignored, as in Triton."""

_package_numbers = itertools.count(1)
"""Names in-process models' packages: sys.modules is the whole process's."""


class PythonBackend:
    """The backend `python`, or a python-based one when `settings.backend_directory` is set: its model.py then serves every
    model. Owns the spawner and unpacked environments until `close`."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._config = settings.config
        self._settings = read_settings(settings.config)
        self._directory = settings.backend_directory
        self._environments = Environments()
        self._spawner = Spawner()
        self._warn_once = threading.Lock()
        self._warned = False
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=DEFAULT_FILENAME,
            devices=frozenset(_KIND_WORDS),
            decoupled=True,
            implicit_state=True,
            ragged=True,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Runs the model's auto_complete_config, if it has one, in a separate interpreter.

        Raises InvalidArgument when the result is not a valid configuration, Internal when it (or importing the model) failed.
        """
        self._warn_ignored(context)
        given = to_json(_with_groups(context, self._capabilities.devices))
        name = f"{context.name}_{context.version}_auto_complete"
        start = WorkerStart(
            name=context.name,
            mode="auto_complete",
            source=self._source(context, str(context.version)),
            directory=str(context.version_directory),
            interpreter=self._environments.interpreter(context),
            config=json.dumps(given),
            sandbox=self._sandbox(context),
        )
        worker = StartedWorker(start, self._settings, self._spawner, _named_log(context, name))
        worker.stop(self._settings.finalize_timeout_s)
        completed = msgspec.json.decode(worker.loaded)
        return context.config if completed is None else merge(context.config, given, completed)

    def load(self, context: ModelContext) -> LoadedModel:
        """Checks what can be checked without running the model; its code is imported by each instance.

        Raises InvalidArgument for contradictory parameters.
        """
        self._warn_ignored(context)
        config = context.config
        forces_host_inputs(config)
        if config.decoupled and state_specs(config):
            raise Unsupported(
                f"model '{config.name}': implicit state of a decoupled model is not supported by the python backend"
            )
        if isolation_of(config, self._config) is Isolation.THREAD:
            refuse_in_thread(config, self._config)
            for parameter in (EXECUTION_ENVIRONMENT, EXECUTE_LIMIT):
                if config.parameter(parameter):
                    raise InvalidArgument(f"model '{context.name}': {parameter} needs {ISOLATION} 'process', not 'thread'")
            package = f"tpy_in_process_model_{next(_package_numbers)}"
            return ThreadedModel(context, self._source(context, package))
        source = self._source(context, str(context.version))
        return ProcessModel(context, source, self._environments, self._spawner, self._settings, self._sandbox(context))

    def close(self) -> None:
        """Ends the spawner and removes unpacked environments."""
        self._spawner.close()
        self._environments.close()

    def _sandbox(self, context: ModelContext) -> Sandbox | None:
        """Raises as `sandbox_of`."""
        return sandbox_of(context, self._config, () if self._directory is None else (str(self._directory),))

    def _source(self, context: ModelContext, package: str) -> ModelSource:
        """Raises InvalidArgument for a file outside the version's folder."""
        if self._directory is not None:
            path = self._directory / DEFAULT_FILENAME
            return ModelSource(str(path), package, "model", (str(self._directory),))
        filename = context.config.default_model_filename or DEFAULT_FILENAME
        relative = PurePosixPath(filename)
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidArgument(f"model '{context.name}': model filename '{filename}' must be inside the version directory")
        path = context.version_directory / relative
        label = f"{context.version}.{path.stem}"
        return ModelSource(str(path), package, label, (str(context.version_directory), str(context.model_directory)))

    def _warn_ignored(self, context: ModelContext) -> None:
        with self._warn_once:
            warn, self._warned = not self._warned, True
        if warn:
            for key in self._settings.ignored:
                context.log("warning", f"--backend-config=python,{key} has no meaning in this server and is ignored")


class ProcessModel:
    """A loaded model whose instances are processes (a `LoadedModel`). They share nothing but this."""

    def __init__(
        self,
        context: ModelContext,
        source: ModelSource,
        environments: Environments,
        spawner: Spawner,
        settings: PythonSettings,
        sandbox: Sandbox | None,
    ) -> None:
        self._context = context
        self._sandbox = sandbox
        self._server = calls_of(sandbox, context.server)
        self._source = source
        self._interpreter = environments.interpreter(context)
        self._execute_limit_s = execute_limit_s(context.config)
        self._spawner = spawner
        self._settings = settings
        self.copies_inputs = True
        """As `tpy.backend.CopiesInputs`: into memory that is shared with the worker."""

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Starts a worker and initialises the model in it. Raises Internal with the reason."""
        context = self._context
        log = _named_log(context, placement.name)
        start = WorkerStart(
            **{**msgspec.structs.asdict(instance_start(context, placement, self._source)), "server": self._server},
            sandbox=self._sandbox,
            mode="instance",
            interpreter=self._interpreter,
            host=placement.host,
            devices=context.devices,
            takes_devices=not forces_host_inputs(context.config),
        )
        state = implicit_state(context.config)
        return start_instance(start, self._settings, self._spawner, log, state=state, execute_limit_s=self._execute_limit_s)

    def unload(self) -> None:
        pass


class ThreadedModel:
    """A loaded model that runs in the server's process (a `LoadedModel`)."""

    def __init__(self, context: ModelContext, source: ModelSource) -> None:
        self._context = context
        self._source = source

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Initialises the model in the calling thread. Raises Internal with the reason."""
        context = self._context
        log = _named_log(context, placement.name)
        start = instance_start(context, placement, self._source)
        return ThreadInstance(start, log, state=implicit_state(context.config))

    def unload(self) -> None:
        """Forgets the model's modules, so that another load reads its files anew."""
        forget(self._source)
        set_for_package(self._source.package, None)


def start_instance(
    start: WorkerStart,
    settings: PythonSettings,
    spawner: Spawner,
    log: LogLine,
    *,
    state: ImplicitState | None,
    execute_limit_s: float | None,
) -> ProcessInstance:
    """Starts a worker that loads the model. Raises as `StartedWorker`, and Internal when no more files can be opened."""
    worker = StartedWorker(start, settings, spawner, log)
    log("verbose", f"worker process {worker.connection.pid} is ready")
    try:
        return ProcessInstance(worker, start, settings, log, state=state, execute_limit_s=execute_limit_s)
    except BaseException as error:
        worker.connection.give_up()
        if isinstance(error, OSError):
            raise Internal(f"cannot watch the worker of '{start.name}': {error}") from error
        raise


def instance_start(context: ModelContext, placement: InstancePlacement, source: ModelSource) -> InstanceStart:
    """The parameters of an instance, in the server or in a separate process."""
    return InstanceStart(
        name=placement.name,
        source=source,
        directory=str(context.version_directory),
        output_names=tuple(output.name for output in context.config.output),
        decoupled=context.config.decoupled,
        iterative=is_iterative(context.config),
        arguments=initialize_arguments(context, placement),
        metrics=context.metrics,
        server=context.server,
    )


def implicit_state(config: ModelConfig) -> ImplicitState | None:
    """That of which the configuration speaks, None for none."""
    specs = state_specs(config)
    return ImplicitState(specs, batching=config.max_batch_size > 0) if specs else None


def execute_limit_s(config: ModelConfig) -> float | None:
    """The seconds that `execute` may take, None: no limit. Raises InvalidArgument for a value that is not such a number."""
    text = config.parameter(EXECUTE_LIMIT)
    if not text:
        return None
    try:
        limit_s = float(text)
    except ValueError:
        limit_s = 0.0
    if not 0 < limit_s < threading.TIMEOUT_MAX:
        raise InvalidArgument(
            f"parameter {EXECUTE_LIMIT} of model '{config.name}' is '{text}', expected a number of seconds above 0"
        )
    return limit_s


def forces_host_inputs(config: ModelConfig) -> bool:
    """Returns whether the model gets all inputs in host memory, which is the default. Raises InvalidArgument as Triton."""
    text = config.parameter(FORCE_HOST_INPUTS) or "yes"
    if text not in ("yes", "no"):
        raise InvalidArgument(f"Incorrect value for {FORCE_HOST_INPUTS}: {text}'")
    return text == "yes"


def is_iterative(config: ModelConfig) -> bool:
    """Returns True if the model may give requests back to be executed again."""
    return config.sequence_batching is not None and config.sequence_batching.iterative_sequence


def initialize_arguments(context: ModelContext, placement: InstancePlacement) -> dict[str, str]:
    """The arguments of `initialize(args)`; every value is a str."""
    return {
        "model_config": json.dumps(to_json(context.config), separators=(",", ":")),
        "model_instance_kind": _KIND_WORDS.get(placement.kind, "CPU"),
        "model_instance_name": placement.name,
        "model_instance_device_id": str(placement.device_id),
        "model_repository": str(context.model_directory),
        "model_version": str(context.version),
        "model_name": context.name,
    }


def _with_groups(context: ModelContext, supported: Collection[InstanceKind]) -> ModelConfig:
    """The configuration with its instance groups filled in, which the model may read, as in Triton. Groups that cannot be placed
    stay as they are: placing says later what is wrong with them."""
    try:
        return normalise_instance_groups(context.config, gpus=context.devices.ids, supported=supported)[0]
    except ConfigError:
        return context.config


def merge(config: ModelConfig, given: Mapping[str, Any], completed: Mapping[str, Any]) -> ModelConfig:
    """The configuration with what auto_complete_config changed. Raises InvalidArgument when the result is not a valid
    configuration.

    `given` and `completed` are the JSON forms before and after.
    """
    changed = {key: completed[key] for key in _COMPLETED if key in completed and completed[key] != given.get(key)}
    if not changed:
        return config
    try:
        parsed = parse_json(json.dumps(changed))
    except ConfigError as error:
        problems = "; ".join(problem.message for problem in error.problems)
        raise InvalidArgument(
            f"auto_complete_config of model '{config.name}' made an invalid configuration: {problems}"
        ) from error
    return msgspec.structs.replace(config, **{key: getattr(parsed, key) for key in changed})


def _named_log(context: ModelContext, name: str) -> LogLine:
    log: Callable[[str, str], None] = context.log
    return lambda level, text: log(level, f"{name}: {text}")
