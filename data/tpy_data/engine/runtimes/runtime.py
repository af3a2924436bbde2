"""Runtime: one copy of a version from its load to its unload, whatever runs its requests. One task, one nursery, one life."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio

from tpy.clock import Clock
from tpy.config import ModelConfig, RequestTimeout
from tpy.deliveries import Deliveries
from tpy.errors import Internal, TpyError
from tpy.ids import ModelId, Version
from tpy.messages import InstanceActivity, MemoryUsage, ModelCounters, ModelState
from tpy.state import UNLOADED, DesiredModel, DesiredVersion, ObservedKey, ObservedVersion, ObservedWriter
from tpy.telemetry.latencies import LatencyOptions
from tpy_data.engine.caching.cache_access import CacheAccess
from tpy_data.engine.instances.restarts import RestartOptions
from tpy_data.engine.loading.loaded_version import Loader
from tpy_data.engine.requests.latencies import VersionLatencies
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.runtimes.core import Phase, Running
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import ServedProcess, ServingTable
from tpy_data.exception_text import exception_text
from tpy_data.executors.executor import Executor, Worker

if TYPE_CHECKING:
    from tpy_data.engine.channels.rate_limiter import RateLimiter

_log = logging.getLogger(__name__)

FAILED_TO_LOAD = "failed to load '%(model)s' version %(version)s: %(reason)s"
SUCCESSFULLY_LOADED = "successfully loaded '%(model)s'"
SUCCESSFULLY_UNLOADED = "successfully unloaded '%(model)s' version %(version)s"
"""Triton's lines of the log: its users look for them."""

REQUESTS_WAIT = "requests wait for an instance"
"""The remark about a version that is not ready and accepts requests."""


class Shared(NamedTuple):
    """The parts of a data plane that all versions share. `loaders` run load and auto-complete, `unloaders` release: apart, so
    that loads that hang do not keep anything from being unloaded. A failed load is tried again `load_retries` times. `cache`
    None: no answers are kept; `limiter` None: nothing is rate limited. In `deliveries` everything is answered. `latencies`
    says which distributions of durations are kept. `make_runtime` makes the runtimes of versions with instances where that is not
    VersionRuntime: under a memory budget. `make_copy` makes what requests get, another one where there are tenants."""

    loader: Loader
    loaders: Worker
    unloaders: Worker
    executor: Executor
    table: ServingTable
    writer: ObservedWriter
    clock: Clock
    deliveries: Deliveries
    load_retries: int = 0
    request_timeout: RequestTimeout = RequestTimeout.QUEUE
    cache: CacheAccess | None = None
    limiter: RateLimiter | None = None
    latencies: LatencyOptions = LatencyOptions()
    restarts: RestartOptions = RestartOptions()
    make_runtime: Callable[[ObservedKey, DesiredModel, DesiredVersion, Shared], Runtime] | None = None
    make_copy: Callable[..., ServedCopy] = ServedCopy

    def latencies_of(self, config: ModelConfig) -> VersionLatencies | None:
        """Those of another version; None where no distributions are kept."""
        wanted = self.latencies.histograms or self.latencies.summaries
        return VersionLatencies(self.latencies, config, self.clock) if wanted else None


class Runtime(ABC):
    """`run` is started by the reconciler, in its nursery; everything else only says what is wanted. The serving table's `Served`:
    `served_copy` is there from when it is switched in."""

    is_on_demand = False
    """True for one that is READY without being loaded."""

    def __init__(self, key: ObservedKey, model: DesiredModel, shared: Shared) -> None:
        self.key = key
        self.phase = Phase.LOADING
        self.ready = False
        self._is_awaited = False  # not ready: its instances have failed, and requests wait until one is there again
        self.load_duration_ns = 0
        self._model = model
        self._shared = shared
        self._copy: ServedCopy | None = None
        self._began_ns = shared.clock.now_ns()
        self._was_loaded = False
        self._stopping = False
        self._loading = trio.CancelScope()
        self._wake = trio.Event()  # something else is wanted
        self._applied_revision = model.config_revision
        self._applied_error = ""
        self._refused_revision = 0
        self._remark = self._note = ""
        self._reported: ObservedVersion | None = None
        self.failure: TpyError | None = None
        """The reason why it could not be loaded, once it has ended."""
        self._move(ModelState.LOADING)

    @property
    def id(self) -> ModelId:
        """The model."""
        return self.key.model

    @property
    def version(self) -> Version:
        """The version."""
        return self.key.version

    @property
    def directory(self) -> Path | None:
        """As `Served.directory`."""
        return None

    @property
    def accepts(self) -> bool:
        """As `Served.accepts`."""
        return self.ready or self._is_awaited

    @property
    def served_copy(self) -> ServedCopy:
        """As `Served.served_copy`."""
        if self._copy is None:
            raise Internal(f"{self.key} is not served")
        return self._copy

    @property
    def executing_engine(self) -> ModelEngine:
        """As `Served.executing_engine`."""
        return self.served_copy.engine

    def has_requests(self) -> bool:
        """Returns True if requests wait or execute here."""
        if self._copy is None:
            return False
        counts = self._copy.engine.snapshot()
        return bool(counts.queued or counts.executing)

    def memory_usage(self) -> tuple[MemoryUsage, ...]:
        """As `Served.memory_usage`."""
        return ()

    def processes(self) -> Sequence[ServedProcess]:
        """As `Served.processes`."""
        return ()

    def counters(self) -> ModelCounters:
        """As `Served.counters`."""
        return self.served_copy.engine.statistics.counters(self.id, self.version, self._memory_bytes())

    def _memory_bytes(self) -> int:
        """The sum of `memory_usage`."""
        return 0

    def instances(self) -> tuple[InstanceActivity, ...]:
        """As `Served.instances`."""
        return ()

    def load(self) -> float | None:
        """As `Served.load`."""
        return None

    def restarts(self) -> int:
        """As `Served.restarts`."""
        return 0

    def retry_s(self) -> int | None:
        """As `Served.retry_s`."""
        return None

    def executing_s(self) -> float:
        """As `Served.executing_s`."""
        return 0.0

    def running(self) -> Running:
        """This copy as the plan sees it."""
        return Running(key=self.key, phase=self.phase, config_revision=self._model.config_revision)

    def stop(self) -> None:
        """Take no new requests from now on, drain and unload; a load under way is unloaded when it is over. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        if self.phase is Phase.SERVING:
            # Here and not when the task gets to it, which can be busy for minutes with making more instances.
            self._retire()
            self._move(ModelState.UNLOADING, phase=Phase.STOPPING)
        self._wake.set()

    def give_up_starting(self) -> None:
        """Wait no longer for a load or for instances that are being made: the server ends. They are left behind."""
        self._loading.cancel()

    @abstractmethod
    def reconsider(self) -> None:
        """Something in the store has changed while this copy does not serve."""

    @abstractmethod
    async def check_ready(self) -> bool:
        """As `Served.check_ready`."""

    @abstractmethod
    def resize(self, model: DesiredModel) -> None:
        """Apply a newer configuration, in which only instances differ."""

    @abstractmethod
    def abandon(self) -> None:
        """Refuse what waits and what executes: the server ends before it is over."""

    @abstractmethod
    async def _live(self) -> TpyError | None:
        """Load, serve until stopped, unload. Returns why it could not be loaded, if so."""

    async def run(self) -> None:
        """Returns when nothing of it is left; then `phase` is FAILED or UNLOADED.

        Cancelling gives up waiting, after a short grace for each instance to close. A bug of ours in here (anything but
        TpyError) ends this version, with the reason in the store, and nothing else.
        """
        try:
            self._end(await self._live())
        except* Exception as bugs:
            self._fall(bugs.exceptions[0])
        finally:
            self._copy = None  # an unloaded version stays to be seen, perhaps for ever; its model does not

    def _retire(self) -> None:
        """Take no new requests."""
        self.ready = self._is_awaited = False
        self._shared.table.switch_out(self)

    def _fall(self, bug: Exception) -> None:
        """A bug of ours ends this version, with the reason in the store, and nothing else."""
        _log.error("a model version failed because of a bug", exc_info=bug, extra={"context": self._about()})
        self._retire()
        self.abandon()
        self._end(Internal(exception_text(bug)))
        self.stop()

    def _end(self, failure: TpyError | None) -> None:
        """Nothing of the version is left."""
        if self.phase in (Phase.FAILED, Phase.UNLOADED):
            return
        self._copy = None
        if failure is None or self._stopping:
            self._move(ModelState.UNAVAILABLE, UNLOADED, phase=Phase.UNLOADED)
            if self._was_loaded:
                _log.info(SUCCESSFULLY_UNLOADED, self._about())
        else:
            is_logged, self.failure = self.failure is failure, failure
            self._move(ModelState.UNAVAILABLE, failure.reason(), phase=Phase.FAILED)
            if not is_logged:
                _log.error(FAILED_TO_LOAD, {**self._about(), "reason": failure.reason()})

    def _move(self, state: ModelState, reason: str = "", *, phase: Phase | None = None) -> None:
        """Change both what the plan sees and what everyone else sees, if that is new."""
        if phase is not None:
            self.phase = phase
        copy = self._copy
        reported = ObservedVersion(
            key=self.key,
            state=state,
            reason=reason,
            config=None if copy is None else copy.config,
            config_revision=self._applied_revision,
            description=None if copy is None else copy.description,
            applied_error=self._applied_error,
            refused_revision=self._refused_revision,
            remark=self._full_remark() if state is ModelState.READY else REQUESTS_WAIT if self._is_awaited else "",
        )
        if reported != self._reported:
            self._reported = reported
            self._shared.writer.move(reported)

    def note(self, text: str) -> None:
        """As `Served.note`."""
        if text == self._note:
            return
        self._note = text
        if self._reported is not None and self._reported.state is ModelState.READY:
            self._move(ModelState.READY)

    def _full_remark(self) -> str:
        return "; ".join(filter(None, (self._remark, self._note)))

    def _about(self) -> dict[str, object]:
        """For log lines."""
        return {"model": str(self.key.model), "version": self.key.version}
