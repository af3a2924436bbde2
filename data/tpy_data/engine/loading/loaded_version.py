"""Loading a model version: everything that happens before instances are made. Blocking; runs in a loader thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from tpy.backend import (
    Backend,
    BackendCapabilities,
    CopiesInputs,
    LoadedModel,
    ModelContext,
    ModelMetrics,
    ServerCalls,
)
from tpy.config import (
    ConfigError,
    ModelConfig,
    Problem,
    describe,
    errors_of,
    normalise,
    validate,
)
from tpy.devices import NO_DEVICES, Devices
from tpy.errors import InvalidArgument
from tpy.messages import MemoryUsage, ModelDescription
from tpy.state import DesiredModel, DesiredVersion
from tpy_data.engine.loading.memory_meter import MemoryMeter
from tpy_data.engine.loading.model_files import InitialStates, read_labels, with_adapters
from tpy_data.engine.loading.placing import Machine, Placed, PlacedInstance, devices_of, place
from tpy_data.engine.loading.support import refuse_beyond, without_effect
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.schedulers.core import NO_START_DELAY, SchedulerCore, StartDelay, make_core
from tpy_data.strategies import OpenStrategy, find_strategy, open_strategy

if TYPE_CHECKING:
    from tpy_data.engine.loading.warmup import WarmupSample
    from tpy_data.engine.tuning.kept_curves import KeptCurves, OpenCurve
    from tpy_data.schedulers.core.tenants import Tenants

Log = Callable[[str, str], None]
"""Level ("verbose", "info", "warning", "error") and message; any thread."""


class Backends(Protocol):
    """The source of backends (`tpy_data.registry.BackendRegistry`). Any thread."""

    def for_model(self, config: ModelConfig, folders: Sequence[Path] = ()) -> Backend:
        """The backend that a configuration names, or that is in the folder of the model's version or the model. Raises TpyError
        for one that is not there or cannot be made."""
        ...

    def folders_of(self, backend: str) -> tuple[Path, ...]:
        """The folders that a backend of this name may have files in."""
        ...


class LoadedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is loaded and has no instances yet. Its owner calls `unload`. `content` is a digest of its
    files and configuration, "" where nobody needs it; `memory` what it has without instances."""

    config: ModelConfig
    description: ModelDescription
    instances: tuple[PlacedInstance, ...]
    samples: tuple[WarmupSample, ...]
    core: SchedulerCore
    model: LoadedModel
    states: InitialStates
    content: str = ""
    memory: tuple[MemoryUsage, ...] = ()
    strategy: OpenStrategy | None = None
    make_ticket: Callable[..., RequestTicket] = RequestTicket
    is_engine: bool = False
    curve: OpenCurve | None = None

    @property
    def is_tuned(self) -> bool:
        """True for a model whose batches are tuned."""
        if self.is_engine or "batching" not in self.config.parameters:
            return False
        from tpy.config.tuned_batching import tuned_batching  # most models have no such parameter

        return tuned_batching(self.config) is not None

    def unload(self) -> None:
        """Let go of the model, and of its batching strategy. Blocking. Raises what they raise."""
        try:
            try:
                if self.curve is not None:
                    self.curve.keep(self.core)
            finally:
                if self.strategy is not None:
                    self.strategy.close()
        finally:
            self.model.unload()


class Loader:
    """Loads versions. Its methods may run in several threads at a time."""

    def __init__(
        self,
        backends: Backends,
        *,
        server_id: str,
        log: Log,
        metrics: ModelMetrics,
        machine: Machine,
        server: ServerCalls | None = None,
        start_delay: StartDelay = NO_START_DELAY,
        devices: Devices = NO_DEVICES,
        tenants: Tenants | None = None,
        curves: KeptCurves | None = None,
    ) -> None:
        self._tenants = tenants
        self._curves = curves
        self.meter = MemoryMeter()
        self._devices = devices
        self._start_delay = start_delay
        self._backends = backends
        self._machine = machine
        self._server_id = server_id
        self._log = log
        self._metrics = metrics
        self._server = server

    def load(self, desired: DesiredModel, version: DesiredVersion) -> LoadedVersion:
        """Complete, normalise and check the configuration, read the files it names, load the model.

        Raises TpyError with the reason; nothing stays loaded then.
        """
        backend, context, placed, instances = self._configured(desired, version, completes=desired.auto_complete)
        config = placed.config
        self._warn_without_effect(config, backend.capabilities)
        labels = read_labels(config, desired.directory)
        states = InitialStates(config, desired.directory)
        samples = _samples(config, desired.directory, states) if config.model_warmup else ()
        curve = self._curves.open(desired, version) if self._curves is not None and "batching" in config.parameters else None
        strategy = self._open_strategy(config, desired, version)
        try:
            is_engine = backend.capabilities.engine
            points = () if curve is None else curve.points
            core = make_core(config, self._start_delay, strategy, engine=is_engine, tenants=self._tenants, curve=points)
            placements = tuple(instance.placement for instance in instances)
            with self.meter.measure(devices_of(placements)) as measured:
                model = backend.load(msgspec.structs.replace(context, config=config, placements=placements))
        except BaseException:
            if strategy is not None:
                strategy.close()
            raise
        return LoadedVersion(
            config=config,
            description=describe(
                config,
                version.version,
                labels,
                namespace=desired.id.namespace,
                copies_inputs=_copies_inputs(model, config),
                gpus=() if _is_cached(config) else devices_of(placements),
            ),
            instances=instances,
            samples=samples,
            core=core,
            model=model,
            states=states,
            memory=measured.usage(),
            is_engine=is_engine,
            make_ticket=_tickets(config, self._tenants, is_engine=is_engine),
            strategy=strategy,
            curve=curve,
        )

    def described(self, desired: DesiredModel, version: DesiredVersion) -> tuple[ModelConfig, ModelDescription]:
        """The configuration and description of a version that is not loaded. Its backend is asked only for what the configuration
        leaves out. Blocking. Raises TpyError as `load` does, as far as it can be known."""
        completes = desired.auto_complete and not (desired.config.input and desired.config.output)
        _, _, placed, instances = self._configured(desired, version, completes=completes)
        config = placed.config
        gpus = () if _is_cached(config) else devices_of(tuple(instance.placement for instance in instances))
        labels = read_labels(config, desired.directory)
        return config, describe(config, version.version, labels, namespace=desired.id.namespace, gpus=gpus)

    def _configured(
        self, desired: DesiredModel, version: DesiredVersion, *, completes: bool
    ) -> tuple[Backend, ModelContext, Placed, tuple[PlacedInstance, ...]]:
        """The completed, normalised and checked configuration, with its instances placed. The context has it as it was before."""
        config = desired.config
        backend = self._backends.for_model(config, (version.directory, desired.directory))
        refuse_beyond(config, backend.capabilities)
        filename = backend.capabilities.default_model_filename
        config = normalise(config, default_model_filename=filename)
        context = ModelContext(
            name=config.name,
            version=version.version,
            generation=version.generation,
            config=config,
            model_directory=desired.directory,
            version_directory=version.directory,
            server_id=self._server_id,
            log=self._log,
            metrics=self._metrics,
            server=self._server,
            devices=self._devices,
        )
        if completes:
            config = normalise(backend.auto_complete(context), default_model_filename=filename)
            config = with_adapters(config, version.directory)
        placed = self._placed(config, backend)
        _require(validate(placed.config))
        refuse_beyond(placed.config, backend.capabilities)
        return backend, context, placed, _scheduled(placed)

    def resized(
        self, current: ModelConfig, desired: ModelConfig, folders: Sequence[Path]
    ) -> tuple[ModelConfig, tuple[PlacedInstance, ...]]:
        """`current`, a loaded version's configuration, with the instance groups and version policy of `desired`; and the
        instances that it wants now. `folders` are those of the version and of the model.

        Raises TpyError for groups that cannot be had. Never blocks for long: the backend exists already.
        """
        changed = msgspec.structs.replace(
            current,
            instance_group=desired.instance_group,
            version_policy=desired.version_policy or current.version_policy,
        )
        placed = self._placed(changed, self._backends.for_model(current, folders))
        _require(validate(placed.config))
        return placed.config, _scheduled(placed)

    def _open_strategy(self, config: ModelConfig, desired: DesiredModel, version: DesiredVersion) -> OpenStrategy | None:
        folders = (version.directory, desired.directory, *self._backends.folders_of(config.backend))
        found = find_strategy(config, desired.directory, folders)
        return None if found is None else open_strategy(found, config, version.version, desired.directory)

    def _placed(self, config: ModelConfig, backend: Backend) -> Placed:
        placed = place(config, self._machine, backend.capabilities)
        for warning in placed.warnings:
            self._log("warning", warning.message)
        return placed

    def _warn_without_effect(self, config: ModelConfig, capabilities: BackendCapabilities) -> None:
        fields = without_effect(config, capabilities)
        if fields:
            self._log("warning", f"model '{config.name}' sets fields that have no effect here: {', '.join(fields)}")


def _copies_inputs(model: LoadedModel, config: ModelConfig) -> bool:
    """Returns whether inputs may be handed to the instances before they are copied: nothing else looks at them, and once."""
    looked_at = config.decoupled or config.sequence_batching is not None or _is_cached(config)
    return not looked_at and isinstance(model, CopiesInputs) and model.copies_inputs


def _is_cached(config: ModelConfig) -> bool:
    return config.response_cache is not None and config.response_cache.enable


def _tickets(config: ModelConfig, tenants: Tenants | None, *, is_engine: bool) -> Callable[..., RequestTicket]:
    """The class of the requests to this model; modules that most servers do not need are imported here."""
    make_ticket: Callable[..., RequestTicket] = RequestTicket
    if is_engine:
        from tpy_data.engine.requests.engine_ticket import tickets_for

        make_ticket = tickets_for(config)
    elif "max_padding" in config.parameters:
        from tpy.config.tuned_batching import length_batching
        from tpy_data.engine.requests.length_tickets import tickets_with_lengths

        if (by_length := length_batching(config)) is not None:
            make_ticket = tickets_with_lengths(make_ticket, by_length)
    if tenants is not None:
        from tpy_data.engine.requests.tenant_tickets import tickets_of

        make_ticket = tickets_of(make_ticket, tenants)
    return make_ticket


def _scheduled(placed: Placed) -> tuple[PlacedInstance, ...]:
    """The instances. Raises InvalidArgument when requests could never run on any of them."""
    if all(instance.passive for instance in placed.instances):
        raise InvalidArgument(f"every instance group of model '{placed.config.name}' is passive: nothing would run its requests")
    return placed.instances


def _require(problems: Sequence[Problem]) -> None:
    """Raise ConfigError when there are errors. Warnings about what the file says were given when it was read."""
    errors = errors_of(problems)
    if errors:
        raise ConfigError(problems, message="; ".join(problem.message for problem in errors))


def _samples(config: ModelConfig, directory: Path, states: InitialStates) -> tuple[WarmupSample, ...]:
    from tpy_data.engine.loading.warmup import make_samples  # few models are warmed up

    return make_samples(config, directory, states)
