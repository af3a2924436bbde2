"""The services: the only way from a frontend into the server.

Frontends see these Protocols and the messages; never the state store or the engine. So the engine can sit in this
process, in another one, or on another host, with the same frontends.

Threading: every method is called on the Trio thread. Errors: every method raises only TpyError (anything else is a bug
that the frontend answers as INTERNAL).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from tpy.config import ModelConfig
from tpy.config_forms import ConfigForms
from tpy.deliveries import Deliveries
from tpy.errors import Unsupported
from tpy.messages import (
    ConfigCheck,
    GpuUse,
    IndexEntry,
    InferenceRequest,
    InferenceResponse,
    LoadReport,
    LoadRequest,
    LogLine,
    LogSettings,
    ModelCounters,
    ModelDescription,
    ModelExplanation,
    ModelGraph,
    ModelStatistics,
    RecordingOptions,
    RecordingStatus,
    RegionKind,
    Registration,
    RolloutStatus,
    ServerMetadata,
    TracedRequest,
)
from tpy.observers import RequestObservers
from tpy.refusals import Refusals
from tpy.regions import Region

T = TypeVar("T")

TraceTexts = Mapping[str, Sequence[str]]
"""Trace settings as texts, by name, in Triton's order."""

TraceUpdates = Mapping[str, Sequence[str]]
"""New values of trace settings as texts, by name; one without texts is cleared."""


class ResponseSink(Protocol):
    """Takes the responses of one request. Implemented by frontends."""

    def deliver(self, response: InferenceResponse) -> None:
        """Take one response. Called on the Trio thread, outside `submit` or inside it (when the answer is already known);
        must neither block nor raise. After a response with `final` it is not called again."""
        ...


class RequestHandle(Protocol):
    """A submitted request, for cancelling and for slowing down. Called on the Trio thread."""

    def cancel(self) -> None:
        """Forget the request: `deliver` is not called again. A queued request leaves its queue at once, an executing one is
        told and its answer dropped. Safe at any time, also after the end; idempotent."""
        ...

    def pause(self) -> None:
        """Deliver no more for now: whoever the responses are for is slow. Responses wait at the engine, and when enough of them
        do, the model that sends them waits. An error (a deadline that passed, a stop) is delivered all the same, in place of
        what waits. May be called inside `deliver`. Without effect on models that answer once; idempotent."""
        ...

    def resume(self) -> None:
        """Deliver again: what waits is delivered inside this call, until it is paused again. Idempotent."""
        ...


class ResolvedModel(Protocol):
    """One loaded copy of a model version, for one request: the request is decoded by `description` and run by `submit`, and its
    answer is encoded by `description`, whatever answers to the model's name by then.

    It can be used until the caller gives way to other tasks. A request that waits for something between `resolve` and `submit`
    holds it meanwhile.
    """

    @property
    def copy(self) -> int:
        """The number of the copy: no other has it for as long as the server runs. 0: it stands for whatever copies hold live
        sequences."""
        ...

    @property
    def description(self) -> ModelDescription:
        """The inputs and outputs of this copy."""
        ...

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> RequestHandle:
        """Check the request against the model, queue it, and start it if an instance is free, all before returning.

        Refusals on arrival (wrong shape, queue full, shutting down) are raised here and not delivered; the sink is then never
        called. Texts are Triton's. Everything later arrives at the sink.

        Where the engine is in another process it is asked after the return: such a refusal arrives at the sink, as a final
        response with the error and `refused`. What is sent to the caller is the same either way.
        """
        ...

    def hold(self) -> None:
        """Keep the copy loaded, and taking requests of whoever holds it, until `release`: an update or unload of the model waits
        for that as for a request."""
        ...

    def release(self) -> None:
        """The end of one `hold`."""
        ...


@contextmanager
def held(model: ResolvedModel) -> Iterator[None]:
    """Holds the model for the length of the block."""
    model.hold()
    try:
        yield
    finally:
        model.release()


class InferenceService(Protocol):
    """Finds served models, which describe themselves and run requests."""

    def resolve(self, model_name: str, version: int | None = None) -> ResolvedModel:
        """The copy that answers for the version now (None: for the newest ready one). To be called once for each request.

        Raises NotFound (unknown model, no available versions, version not loaded) or Unavailable (version not at ready
        state), with Triton's texts; InvalidArgument for an ambiguous name under namespacing.
        """
        ...

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        """All versions at READY, ascending. Raises NotFound for an unknown model."""
        ...

    def config(self, model_name: str, version: int | None = None) -> ModelConfig:
        """The normalised and auto-completed configuration. Raises as `resolve`."""
        ...

    def config_forms(self, model_name: str, version: int | None = None) -> ConfigForms:
        """The same, for ports to answer it: encoded once for each copy. Raises as `resolve`."""
        ...


class LoadingService(Protocol):
    """Loads and unloads models by name."""

    async def load(self, request: LoadRequest) -> None:
        """Load or reload a model and return when it serves (or raise why it does not). EXPLICIT mode only; raises
        Unavailable otherwise. Cancelling the call does not undo the load."""
        ...

    async def unload(self, model_name: str, *, unload_dependents: bool = False) -> None:
        """Stop serving a model; returns at once, requests in flight finish. Unknown models succeed. EXPLICIT mode only."""
        ...


class RepositoryService(LoadingService, Protocol):
    """The model repository extension and readiness."""

    def server_live(self) -> bool:
        """True from when the core is initialised until the process ends."""
        ...

    def server_ready(self) -> bool:
        """Under strict readiness: every known model version is READY or was unloaded on purpose. False
        while a server that stops still takes connections, for live sequences; its open ones are told what they were before."""
        ...

    async def model_ready(self, model_name: str, version: int | None = None) -> bool:
        """Returns True if the version (None: the newest) would serve a request. False for an unknown or ambiguous name, too, and
        for a version that is not loaded, as in Triton: clients poll for models that are yet to come."""
        ...

    async def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """The repository index, sorted by name, then version."""
        ...


class RegistrationService(Protocol):
    """Repositories that come and go while the server runs. EXPLICIT mode only."""

    async def register(self, path: str, names: Mapping[str, str]) -> None:
        """Look for models in this folder, too; `names` are the models of folders in it that are to be called otherwise. Raises
        Unsupported in other modes, InvalidArgument where there is no folder, AlreadyExists for a repository or a name that is
        registered; Triton's texts."""
        ...

    def unregister(self, path: str) -> None:
        """Look there no more; what is loaded goes on. Raises InvalidArgument for one that is not registered."""
        ...


class ConfigCheckService(Protocol):
    """Checks configurations without loading models."""

    async def check_config(self, model_name: str, config: str | None = None) -> ConfigCheck:
        """Check `config`, JSON as of a load call or in the form of a config.pbtxt, against the files of a model; None: the
        configuration that it has there. Raises InvalidArgument for a model that no repository has, or several have."""
        ...


class DiagnosticsService(Protocol):
    """Statistics, and settings that change while the server runs."""

    def server_metadata(self) -> ServerMetadata:
        """Name, version, extensions."""
        ...

    async def statistics(self, model_name: str = "", version: int | None = None) -> Sequence[ModelStatistics]:
        """Statistics of all models ("") or one; sorted by name, then version. Raises InvalidArgument for an unknown one."""
        ...

    async def counters(self) -> Sequence[ModelCounters]:
        """The counters of all versions, which cost little to ask for: in this process a version to which nothing has happened
        since the last call is the same object."""
        ...

    async def explain(self, model_name: str, version: int | None = None) -> Sequence[ModelExplanation]:
        """Explanations of how the engine treats the requests of a model now; sorted by version. Raises InvalidArgument for a
        model or version that is not served."""
        ...

    async def graph(self, model_name: str, version: int | None = None) -> ModelGraph:
        """The graph in the file of a model, of the newest version that is served for None. Raises InvalidArgument for a model or
        version that is not served, Unsupported for other files than ONNX, Internal for one that cannot be read."""
        ...

    async def rollout(self, model_name: str, action: str = "", plan: str = "") -> RolloutStatus:
        """The rollout of a model, after `action`: "start" begins at the first step, by a `plan` as the parameter `rollout` has it
        or by that parameter, "promote" gives all requests to the new version, "roll_back" to the old one. Raises NotFound where
        no version is rolled out, or not two are loaded to start with, InvalidArgument for another action or an impossible
        plan."""
        ...

    def log_settings(self) -> LogSettings:
        """The settings in force."""
        ...

    async def update_log_settings(self, settings: LogSettings) -> None:
        """Put new settings in force. Raises InvalidArgument / Unavailable / Unsupported with Triton's texts."""
        ...

    async def trace_settings(self, model_name: str = "", updates: TraceUpdates | None = None) -> TraceTexts:
        """The trace settings in force for a model, "" for the server, after an update where one is given. Raises InvalidArgument
        and Unsupported with Triton's texts."""
        ...


class RecordingService(Protocol):
    """Recordings of requests and their answers, an addition of tpy."""

    async def status(self) -> RecordingStatus:
        """The present recording, or the last one."""
        ...

    async def change(self, options: RecordingOptions | None) -> RecordingStatus:
        """Start a recording; with None stop the current one, if any. Raises Unsupported without --recording-directory,
        AlreadyExists during a recording, InvalidArgument for invalid options, Internal when
        the file cannot be written."""
        ...


NO_DIRECTORY = "this server makes no recordings: start it with --recording-directory"


class NoRecordings:
    """The RecordingService of a server without recordings."""

    async def status(self) -> RecordingStatus:
        """See RecordingService."""
        return RecordingStatus()

    async def change(self, options: RecordingOptions | None) -> RecordingStatus:
        """See RecordingService."""
        if options is not None:
            raise Unsupported(NO_DIRECTORY)
        return RecordingStatus()


class NoTraces:
    """The TraceService of a server that traces nothing."""

    async def recent_after(self, number: int) -> Sequence[TracedRequest]:
        """See TraceService."""
        return ()


class SharedMemoryService(Protocol):
    """Shared memory with clients. Texts are Triton's."""

    @property
    def regions(self) -> Mapping[str, Region]:
        """The registered regions, by name. A region that is unregistered stays usable for whoever refers to it."""
        ...

    def require_enabled(self) -> None:
        """Raise Unsupported unless clients may register regions (--allow-client-shm)."""
        ...

    async def register(self, registration: Registration) -> None:
        """Register a region; when this returns, every frontend knows it. Raises Unsupported as `require_enabled`, AlreadyExists
        for a name that is taken, InvalidArgument for a range outside the segment, Internal for a segment that cannot be opened,
        Unavailable when there are too many."""
        ...

    async def unregister(self, kind: RegionKind, name: str = "") -> None:
        """Forget the region of this kind, or all of them (""). A name without region succeeds. Raises Unsupported as
        `require_enabled`."""
        ...


class ReadinessService(Protocol):
    """Tells when it is worth asking for readiness again."""

    async def wait_changed(self, seen: int) -> int:
        """Wait until what `server_ready` and `model_ready` answer may have changed since this returned `seen`, and return a
        number for the state now. Never below 0, so -1 means that nothing was seen and returns at once. Changes may be merged."""
        ...


class MetricsService(Protocol):
    """The metrics of the server."""

    async def page(self, *, openmetrics: bool = False) -> bytes:
        """All metrics as they are now, in Prometheus' text format or in OpenMetrics."""
        ...

    async def load(self, model_name: str = "", version: int | None = None) -> LoadReport:
        """The load of the server and of a model (None: its newest version), for load balancers. Cheap enough to be asked
        with each request; a model that is unknown, or has no instances, is left out."""
        ...

    async def gpus(self) -> Sequence[GpuUse]:
        """The use of the server's GPUs when they were last sampled. Empty without GPUs or --allow-gpu-metrics."""
        ...


class LogService(Protocol):
    """The newest lines of the log, and the number of lines that frontend processes lost."""

    def lost(self, lines: int) -> None:
        """Count lines that could not be written in time in a process other than the engine's."""
        ...

    async def lines_after(self, number: int) -> Sequence[LogLine]:
        """The lines that are kept and have a higher number, the oldest first."""
        ...


class TraceService(Protocol):
    """The newest traces."""

    async def recent_after(self, number: int) -> Sequence[TracedRequest]:
        """The traces that are kept and have a higher number, the oldest first."""
        ...


class ControlAction(AbstractContextManager["ControlAction"], Protocol):
    """A call that changes something about the server. An error that leaves its block is how it ended."""

    def identified(self, caller: str, model: str) -> None:
        """Tell who calls, "" for nobody who is known, and about which model, "" for none."""
        ...

    async def begin(self) -> None:
        """To be called when the call may be carried out, before anything is changed. Raises Unavailable where changes must be
        logged and cannot be."""
        ...

    def ended(self, result: str) -> None:
        """The call ended in another way than OK, but without an error."""
        ...

    def forget(self) -> None:
        """The call turned out to change nothing: it is not logged."""
        ...


class AuditService(Protocol):
    """The log of control actions."""

    def action(
        self, protocol: str, route: str, *, peer: str = "", certificate: Any = None, caller: str = "", model: str = ""
    ) -> ControlAction:
        """A call to `route` of a port; `certificate` is the client's, as `ssl` tells it."""
        ...


class Services:
    """The services together, as a frontend receives them. Without `readiness` a frontend that reports changes has to poll.
    `deliveries` says which responses come together; without, each stands alone. Only the engine's own process has
    `registration`. `observers` are those of this process. Without `audit` control actions are not logged."""

    __slots__ = (
        "audit",
        "checks",
        "deliveries",
        "diagnostics",
        "inference",
        "log",
        "metrics",
        "observers",
        "readiness",
        "recordings",
        "refusals",
        "registration",
        "repository",
        "shared_memory",
        "traces",
    )

    def __init__(
        self,
        *,
        inference: InferenceService,
        repository: RepositoryService,
        diagnostics: DiagnosticsService,
        shared_memory: SharedMemoryService,
        readiness: ReadinessService | None = None,
        deliveries: Deliveries | None = None,
        metrics: MetricsService | None = None,
        observers: RequestObservers | None = None,
        registration: RegistrationService | None = None,
        recordings: RecordingService | None = None,
        log: LogService | None = None,
        refusals: Refusals | None = None,
        traces: TraceService | None = None,
        checks: ConfigCheckService | None = None,
        audit: AuditService | None = None,
    ) -> None:
        self.inference = inference
        self.repository = repository
        self.diagnostics = diagnostics
        self.shared_memory = shared_memory
        self.readiness = readiness
        self.deliveries = deliveries or Deliveries()
        self.metrics = metrics
        self.observers = observers or RequestObservers()
        self.registration = registration
        self.recordings = recordings or NoRecordings()
        self.log = log
        self.refusals = refusals or Refusals()
        self.traces = traces
        self.checks = checks
        self.audit = audit

    def copy(self) -> Services:
        """The same services, for some to be replaced."""
        return Services(**{name: getattr(self, name) for name in self.__slots__})


def offered(service: T | None) -> T:
    """The service. Raises Unsupported where the server does not offer it."""
    if service is None:
        raise Unsupported("this server does not offer that")
    return service
