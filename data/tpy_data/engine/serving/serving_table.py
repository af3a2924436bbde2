"""ServingTable: which version answers for a name. Looked up with each request, changed when a version comes or goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tpy.backend import HasHostMemory
from tpy.ids import ModelId, Version
from tpy.limits import HAVE_SERVED_REMEMBERED_MAX
from tpy.messages import InferenceRequest, InstanceActivity, MemoryGrowth, MemoryUsage, ModelCounters, ModelDescription
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.sequences.sequence_peers import SequencePeers
from tpy_data.engine.serving.served_copy import ServedCopy

if TYPE_CHECKING:
    from tpy_data.engine.memory.core.memory_trend import MemoryTrend


class ServedProcess(Protocol):
    """An instance in a separate process, as the memory watch sees it. `trend` is the watch's, and gone with the process."""

    trend: MemoryTrend | None

    @property
    def name(self) -> str: ...

    @property
    def process(self) -> HasHostMemory | None:
        """None while it is being started again."""
        ...

    @property
    def growth(self) -> MemoryGrowth | None:
        """That of `trend`."""
        ...

    def leak_changed(self) -> None:
        """It leaks now, or does not any more, as `growth` says."""
        ...


class Served(Protocol):
    """A version that is switched in."""

    @property
    def id(self) -> ModelId: ...
    @property
    def version(self) -> Version: ...
    @property
    def ready(self) -> bool:
        """False while none of its instances is alive."""
        ...

    @property
    def accepts(self) -> bool:
        """True while it takes requests: when it is ready, and while a failed instance is awaited."""
        ...

    @property
    def served_copy(self) -> ServedCopy:
        """The copy that requests get while this is so: an ensemble gets another one when its members change."""
        ...

    @property
    def executing_engine(self) -> ModelEngine:
        """The engine of `served_copy`; for a model that is loaded on demand, that of the copy which is loaded now, if one is."""
        ...

    @property
    def load_duration_ns(self) -> int: ...

    @property
    def directory(self) -> Path | None:
        """The folder of its files; None: it is an ensemble."""
        ...

    def memory_usage(self) -> tuple[MemoryUsage, ...]:
        """Memory by device, as it was when the version and its instances were made."""
        ...

    def processes(self) -> Sequence[ServedProcess]:
        """Its instances in separate processes, as far as they are there."""
        ...

    def counters(self) -> ModelCounters:
        """As `DiagnosticsService.counters`."""
        ...

    def executing_s(self) -> float:
        """Seconds for which an instance executes without finishing a batch, where that is long; else 0."""
        ...

    def load(self) -> float | None:
        """Demanded over available time of its instances, smoothed: 0 idle, 1 full. None for an ensemble, which has no
        instances."""
        ...

    def restarts(self) -> int:
        """Instances of it that failed and were started again since it was loaded."""
        ...

    def retry_s(self) -> int | None:
        """Seconds until a failed instance is started again, at least 1; None while none has failed."""
        ...

    def instances(self) -> tuple[InstanceActivity, ...]:
        """The activity of its instances; empty for an ensemble."""
        ...

    def note(self, text: str) -> None:
        """Say this of it in the index while it is ready."""
        ...

    async def check_ready(self) -> bool:
        """The model's own answer whether it is ready; True when it has no readiness check."""
        ...


class ServedKey(NamedTuple):
    """A version of a model."""

    model: ModelId
    version: Version


class Answering(Protocol):
    """A `tpy.services.ResolvedModel` for requests without a version: a copy, or what chooses one."""

    @property
    def copy(self) -> int: ...

    @property
    def description(self) -> ModelDescription: ...

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        ...

    def hold(self) -> None:
        """As `ResolvedModel.hold`."""
        ...

    def release(self) -> None:
        """As `ResolvedModel.release`."""
        ...


class Awaited(NamedTuple):
    """Requests without a version get none until this one is there, or has failed."""

    version: int


Turned = tuple[Served, Answering] | Awaited
"""A version that requests without one are described by and what answers them, or the version that they need."""


class ServedModel:
    """The versions of a model that are switched in; `newest` is what a request without version gets: one that is ready, if there
    is any. `turned` are another one and what answers in its place, while a version is rolled out, or the version that is
    `awaited`: then there is no `newest`. `resolved` has what requests get that ask for a version, or for None, as far as it
    accepts them. Immutable: a change makes a new one, so that a switch is one assignment."""

    __slots__ = ("awaited", "newest", "resolved", "versions")

    def __init__(self, versions: Mapping[int, Served], turned: Turned | None = None) -> None:
        self.versions = dict(sorted(versions.items()))
        ready = [served for served in self.versions.values() if served.ready]
        accepting = [served for served in self.versions.values() if served.accepts]
        usable = ready or accepting
        self.newest: Served | None = usable[-1] if usable else None
        self.resolved: dict[int | None, Answering] = {served.version: served.served_copy for served in accepting}
        self.awaited: int | None = None
        if isinstance(turned, Awaited):
            self.newest, self.awaited = None, turned.version
        elif turned is not None:
            self.newest, self.resolved[None] = turned
        elif self.newest is not None:
            self.resolved[None] = self.newest.served_copy


class ServingTable:
    """The models that answer now, by identity, and by bare name where only one model has that name."""

    def __init__(self) -> None:
        self.by_name: dict[str, ServedModel] = {}
        """Read by the request path. A name that several namespaces serve is not in it."""
        self._by_id: dict[ModelId, ServedModel] = {}
        self.have_served: dict[ServedKey, None] = {}
        """The versions that were switched in, the last HAVE_SERVED_REMEMBERED_MAX: a model that was removed is known as one
        without versions."""
        self.sequences = SequencePeers()
        """The live sequences, whatever is switched in."""
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        self.turn: Callable[[ModelId, ServedModel], Turned | None] = lambda model, served: None
        """Asked at each change of a model: which version requests without one are described by, and what takes them; None: the
        newest does."""

    def watch(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        """Call `changed` whenever a model of one of these names is switched in, out, or refreshed: inside that call, so that
        nobody sees the table as it is in between. It must not raise."""
        for name in names:
            self._watchers.setdefault(name, []).append(changed)

    def unwatch(self, names: Iterable[str], changed: Callable[[], None]) -> None:
        """The end of `watch`, with the same arguments."""
        for name in names:
            self._watchers[name].remove(changed)
            if not self._watchers[name]:
                del self._watchers[name]

    def switch_in(self, served: Served) -> Served | None:
        """`served` answers for its version from now on. Returns what did before."""
        key = ServedKey(served.id, served.version)
        self.have_served.pop(key, None)
        self.have_served[key] = None
        if len(self.have_served) > HAVE_SERVED_REMEMBERED_MAX:
            del self.have_served[next(iter(self.have_served))]
        versions = self._versions(served.id)
        before = versions.get(served.version)
        versions[served.version] = served
        self._set(served.id, versions)
        return before

    def switch_out(self, served: Served) -> None:
        """`served` answers no more. No-op when another one has taken its place."""
        versions = self._versions(served.id)
        if versions.get(served.version) is served:
            del versions[served.version]
            self._set(served.id, versions)

    def refresh(self, served: Served) -> None:
        """`served.ready` or `served.accepts` has changed."""
        if served.id in self._by_id:
            self._set(served.id, self._versions(served.id))

    def reconsider(self, model: ModelId) -> None:
        """`turn` has another answer for this model."""
        if model in self._by_id:
            self._set(model, self._versions(model))

    def models(self) -> Iterator[tuple[ModelId, ServedModel]]:
        """All, by name."""
        return iter(sorted(self._by_id.items(), key=lambda item: item[0]))

    def all(self) -> Iterator[Served]:
        """All versions, in no order."""
        return (served for known in self._by_id.values() for served in known.versions.values())

    def named(self, name: str) -> list[ModelId]:
        """The models of this name that have a version."""
        return sorted(model for model in self._by_id if model.name == name)

    def model(self, model: ModelId) -> ServedModel | None:
        """The versions of a model, None when it is not served."""
        return self._by_id.get(model)

    def _versions(self, model: ModelId) -> dict[int, Served]:
        known = self._by_id.get(model)
        return {} if known is None else dict(known.versions)

    def _set(self, model: ModelId, versions: Mapping[int, Served]) -> None:
        if versions:
            found = ServedModel(versions)
            turned = self.turn(model, found)
            self._by_id[model] = found if turned is None else ServedModel(versions, turned)
        else:
            self._by_id.pop(model, None)
        same_name = self.named(model.name)
        if len(same_name) == 1:
            self.by_name[model.name] = self._by_id[same_name[0]]
        else:
            self.by_name.pop(model.name, None)
        for changed in tuple(self._watchers.get(model.name, ())):
            changed()
