"""Plane, the control plane's driver: the tasks around the core. What others may ask of it is ControlPlane (service.py)."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec

from tpy.clock import Clock
from tpy.errors import Unavailable
from tpy.ids import ModelId, Version
from tpy.messages import IndexEntry, ModelState
from tpy.reloading import reloaded
from tpy.state import DesiredWriter, ModelStateStore, Snapshot
from tpy.telemetry.exposition import MeasuredFamily
from tpy.telemetry.repositories import held_models
from tpy.units import NS_PER_S
from tpy_control.agents import AgentsWhenNeeded
from tpy_control.core.candidate import DUPLICATE_TEXT, Candidate, Override, RefusalKind, Refused
from tpy_control.core.control import Action, ControlCore, Put, Reject, Remove, Withdraw
from tpy_control.core.debounce import Debouncer, PollResult
from tpy_control.core.index import (
    all_settled,
    counts_for_readiness,
    failed_versions,
    index_entries,
    is_refused,
    model_id,
    strictly_ready,
)
from tpy_control.core.losses import Losses, LossEvent
from tpy_control.core.scan import ModelLocation
from tpy_control.options import ControlMode, ControlOptions, Readiness
from tpy_control.overrides import OverrideDirectories
from tpy_control.preparation import Preparation, Prepared
from tpy_control.sources.protocol import RepositorySource

_log = logging.getLogger(__name__)

ALL_MODELS = ("*",)

_LOSS_POLLS = 2
"""Poll intervals that confirm the loss of most models of a repository."""

_POLL_BATCH = 50
"""Models polled by one call of a thread: the hand-over costs more than the poll of one model."""


class StartupReport(msgspec.Struct, frozen=True, kw_only=True):
    """The models that are loaded at the start. `entries` are for the table of models; `failed` those of them that are not READY,
    for --exit-on-error."""

    entries: tuple[IndexEntry, ...]
    failed: tuple[IndexEntry, ...]


_IndexSource = tuple[Snapshot | None, Sequence[ModelLocation], Mapping[ModelId, Refused]]
"""All that the repository index is made of."""


class Plane:
    """Owns the core and performs its actions. Not thread-safe: for the event loop's thread only."""

    def __init__(
        self,
        options: ControlOptions,
        *,
        store: ModelStateStore,
        writer: DesiredWriter,
        source: RepositorySource,
        preparation: Preparation,
        overrides: OverrideDirectories,
        agents: AgentsWhenNeeded,
        clock: Clock,
    ) -> None:
        self.options = options
        self.store = store
        self.core = ControlCore(next_generation=writer.next_generation, auto_complete=options.auto_complete)
        self.source = source
        self.preparation = preparation
        self.overrides = overrides
        self.agents = agents
        self.known_locations: Sequence[ModelLocation] = ()
        self._writer = writer
        self._clock = clock
        self._debouncer = Debouncer(options.settle_ns)
        self._losses = Losses(_LOSS_POLLS * options.poll_interval_ns if options.hold_losses else 0)
        self._woken = anyio.Event()
        self._failed_at_start: frozenset[ModelId] = frozenset()
        self._index: tuple[_IndexSource, Sequence[IndexEntry]] = ((None, (), {}), ())

    def id_of(self, location: ModelLocation) -> ModelId:
        """The identity of the model in a directory."""
        return model_id(location, namespacing=self.options.namespacing)

    def wake(self) -> None:
        """Poll soon: something in a repository has changed."""
        self._woken.set()

    @asynccontextmanager
    async def reloaded(self) -> AsyncIterator[None]:
        """Look at the repositories at once when files are to be read again, within the block, in the modes that follow them."""

        def look() -> None:
            if self.options.mode is not ControlMode.NONE:
                _log.info("looking at the model repositories")
                self._losses.confirm()
                self.wake()

        with reloaded(look):
            yield

    async def relist(self) -> Sequence[ModelLocation]:
        """List the models anew. Raises Unavailable."""
        self.known_locations = await self.source.list_models()
        return self.known_locations

    async def start(self) -> None:
        """Desire the models to load at the start. Raises Unavailable for a repository that cannot be read."""
        await self.relist()
        if self.options.mode is ControlMode.POLL:
            self._held(self._clock.now_ns())
        chosen = self._groups(self.known_locations)
        if self.options.mode is ControlMode.EXPLICIT and self.options.load_models != ALL_MODELS:
            chosen = {model: locations for model, locations in chosen.items() if model.name in self.options.load_models}
            for name in sorted(set(self.options.load_models) - {model.name for model in chosen}):
                self.perform(self.core.refuse(self.missing(ModelId(name))))
        ensembles: list[Candidate] = []  # last: each finds its components desired, and waits for them
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.source.prefetch, _singles(chosen))
            for model, locations in sorted(chosen.items()):
                candidate = await self._take(model, locations, why="startup", hold=ensembles)
                if candidate is not None and self.options.mode is ControlMode.EXPLICIT:
                    await self.take_components(candidate, why="startup")
        for candidate in ensembles:
            self.use(candidate, why="startup")

    async def take_components(self, candidate: Candidate, *, why: str) -> list[ModelId]:
        """Desire the components of an ensemble, at any depth, as they are on disk now. Returns the ones found, deepest first.
        A missing or refused one is reported by the ensemble, which cannot be served without it."""
        taken: dict[ModelId, None] = {}
        waiting = list(candidate.components)
        seen = {candidate.id.name}
        groups = self._groups(self.known_locations)
        while waiting:
            name = waiting.pop()
            for model in [model for model in groups if model.name == name and name not in seen]:
                component = await self._take(model, groups[model], why=why, by_name=False)
                if component is not None:
                    taken[model] = None
                    waiting.extend(component.components)
            seen.add(name)
        return list(reversed(taken))

    async def poll_forever(self) -> None:
        """Poll the repositories every `poll_interval_ns`, sooner when woken, and when a changed model has been debounced."""
        next_poll_ns = self._clock.now_ns() + self.options.poll_interval_ns
        is_readable = True
        while True:
            # A result that is due while the repositories cannot be read waits for the next poll, or this loop would spin.
            settled_ns = self._debouncer.next_deadline_ns() if is_readable else None
            deadline_ns = next_poll_ns if settled_ns is None else min(settled_ns, next_poll_ns)
            now_ns = await self._wait_until(deadline_ns)
            is_readable = await self._poll_all(now_ns)
            next_poll_ns = now_ns + self.options.poll_interval_ns

    async def follow_listing_forever(self) -> None:
        """Keep the list of models up to date for the index, where loads and unloads are explicit."""
        while True:
            await self._wait_until(self._clock.now_ns() + self.options.poll_interval_ns)
            try:
                await self.relist()
            except Unavailable as error:
                self._warn_unreadable(error)
                continue
            present = {self.id_of(location) for location in self.known_locations}
            for model in sorted(set(self.core.models()) - present):
                if not self.core.is_wanted(model) and model.name not in self.options.load_models:
                    self.perform(self.core.forget(model))

    async def keep_answering_forever(self) -> None:
        """Desire the versions that answer while newer ones are rolled out, and not any longer; runs until cancelled."""
        answering: Mapping[ModelId, Version] = {}
        async for snapshot in self.store.watch():
            before, answering = answering, snapshot.answering
            for model in before.keys() | answering.keys() if answering is not before else ():
                if before.get(model) != answering.get(model):
                    self.perform(self.core.keep_answering(model, answering.get(model)))

    async def return_unused_forever(self) -> None:
        """Give the source back its copies of models that are neither desired nor loaded any more; runs until cancelled."""
        before: frozenset[ModelId] | None = None
        async for _ in self.store.watch():
            used = _used(self.store.snapshot())
            if used != before:
                before = used
                await self.source.retain(functools.partial(self._is_used, used))

    def _is_used(self, used: frozenset[ModelId], location: ModelLocation) -> bool:
        return self.id_of(location) in used

    async def prepare(
        self,
        location: ModelLocation,
        *,
        source: RepositorySource | None = None,
        model: ModelId | None = None,
        override: Override | None = None,
    ) -> Prepared | None:
        """The candidate of a directory; None where there is no directory. Without `override` a kept one is used again."""
        source = self.source if source is None else source
        model = self.id_of(location) if model is None else model
        scan = await source.scan(location, config_name=self.options.model_config_name)
        if scan is None:
            return None
        if override is None:
            override = self.core.kept_override(model, scan.fingerprint)
        prepared = await self.preparation.prepare(source, scan, model, override=override)
        if isinstance(prepared.outcome, Refused):
            source.prepared(scan.directory, is_used=False)
        return prepared

    def use(self, outcome: Candidate | Refused, *, why: str, by_name: bool = True, retry: bool = False) -> None:
        """Desire a candidate, or write its rejection. With `retry`, versions that have failed or whose files were touched are
        reloaded, and instance groups that could not be applied are retried."""
        if isinstance(outcome, Refused):
            self.perform(self.core.refuse(outcome))
            return
        for warning in outcome.warnings:
            _log.warning("model '%(model)s': %(reason)s", {"model": str(outcome.id), "reason": warning})
        before = self.core.desired(outcome.id)
        snapshot = self.store.snapshot()
        failed = failed_versions(snapshot, before) if retry else ()
        apply_again = retry and is_refused(snapshot, before)
        actions = self.core.apply(
            outcome,
            why=why,
            by_name=by_name,
            failed=failed,
            apply_again=apply_again,
            reload_touched=retry,
            answering=snapshot.answering.get(outcome.id),
        )
        self.perform(actions)
        desired = self.core.desired(outcome.id)
        if outcome.lifecycle and desired is not None:
            self.agents.keep(outcome, desired)
        self.source.prepared(outcome.origin or outcome.directory, is_used=True)

    def perform(self, actions: Iterable[Action]) -> None:
        """Write what the core decided."""
        for action in actions:
            match action:
                case Put(desired):
                    self._writer.put(desired)
                    self.overrides.keep(desired)
                    text = "model '%(model)s' is to be unloaded (%(why)s)"
                    if desired.versions:
                        text = "model '%(model)s' is to be served with versions %(versions)s (%(why)s)"
                    versions = ", ".join(map(str, desired.versions))
                    _log.debug(text, {"model": str(desired.id), "versions": versions, "why": desired.why})
                case Reject(model, reason, message):
                    self._writer.reject(model, reason)
                    served = self.core.desired(model)
                    goes_on = "" if served is None or not served.versions else ", the loaded versions go on serving"
                    _log.error(
                        "Poll failed for model directory '%(model)s'%(goes_on)s: %(reason)s",
                        {"model": str(model), "reason": message, "goes_on": goes_on},
                    )
                case Withdraw(model):
                    self._writer.withdraw_rejection(model)
                case Remove(model):
                    self._writer.remove(model)
                    _log.debug("model '%(model)s' has no directory any more", {"model": str(model)})

    def missing(self, model: ModelId) -> Refused:
        """The refusal of a name that no repository has."""
        locations = ", ".join(str(path) for path in self.options.repositories)
        text = f"model not found in any model repository: no directory '{model.name}' in {locations}"
        return Refused(id=model, kind=RefusalKind.POLL, message=text)

    def strictly_ready(self, snapshot: Snapshot) -> bool:
        """Returns True if all models that --readiness waits for are served."""
        refusals = self.core.refusals.values()
        if self.options.readiness is Readiness.ALL_MODELS:
            explicit = self.options.mode is ControlMode.EXPLICIT
            names = self.options.load_models
            counted = [r for r in refusals if counts_for_readiness(r, explicit=explicit, at_start=names)]
            return strictly_ready(snapshot, refusals=counted, failed_loads=lambda _: True)
        # A directory or configuration that cannot be read counts as little as in Triton, which does not know the model then.
        counted = [r for r in refusals if r.kind is RefusalKind.NO_VERSIONS and r.id in self._failed_at_start]
        return strictly_ready(snapshot, refusals=counted, failed_loads=self._failed_at_start.__contains__)

    def index(self) -> Sequence[IndexEntry]:
        """The repository index: the same list as before while nothing has changed."""
        snapshot, locations, refusals = self.store.snapshot(), self.known_locations, dict(self.core.refusals)
        kept, entries = self._index
        if snapshot is not kept[0] or locations is not kept[1] or refusals != kept[2]:
            entries = index_entries(snapshot, locations=locations, refusals=refusals, namespacing=self.options.namespacing)
            self._index = (snapshot, locations, refusals), entries
        return entries

    async def wait_startup_settled(self) -> StartupReport:
        """Wait until every desired version is READY or has failed."""
        await self.store.wait_for(all_settled)
        asked_for = set(self.core.models())
        entries = tuple(entry for entry in self.index() if ModelId(entry.name, entry.namespace) in asked_for)
        failed = tuple(entry for entry in entries if entry.state is not ModelState.READY)
        self._failed_at_start = frozenset(ModelId(entry.name, entry.namespace) for entry in failed)
        return StartupReport(entries=entries, failed=failed)

    async def _wait_until(self, deadline_ns: int) -> int:
        """Sleep until the deadline or `wake`. Returns the time for the core, never before a deadline that has passed."""
        seconds = max(0, deadline_ns - self._clock.now_ns()) / NS_PER_S
        with anyio.move_on_after(seconds) as scope:
            await self._woken.wait()
        self._woken = anyio.Event()
        now_ns = self._clock.now_ns()
        return max(now_ns, deadline_ns) if scope.cancelled_caught else now_ns

    async def _poll_all(self, now_ns: int) -> bool:
        """Poll every model once. Returns False if the repositories could not be read."""
        try:
            await self.relist()
        except Unavailable as error:
            # Nothing is known now; in particular not that the models are gone. They go on serving.
            self._warn_unreadable(error)
            return False
        groups = self._groups(self.known_locations)
        held = self._held(now_ns)
        for model in held:
            self._debouncer.keep(model)
        models = sorted(groups.keys() | (self._debouncer.models() - held))
        ensembles: list[Candidate] = []
        for first in range(0, len(models), _POLL_BATCH):
            await self._poll_models(
                {model: groups.get(model, ()) for model in models[first : first + _POLL_BATCH]}, now_ns, ensembles
            )
        for candidate in ensembles:
            self.use(candidate, why="file change")
        return True

    def families(self) -> list[MeasuredFamily]:
        """The metrics of the repositories."""
        return [*self.source.families(), held_models(self._losses.held())]

    def _held(self, now_ns: int) -> set[ModelId]:
        """The models that are gone with most others of their repository, and still count as there."""
        names: dict[str, set[str]] = {repository: set() for repository in self._losses.repositories()}
        for location in self.known_locations:
            names.setdefault(location.repository, set()).add(location.name)
        held: set[ModelId] = set()
        for repository, present in names.items():
            poll = self._losses.poll(repository, frozenset(present), now_ns)
            held.update(self.id_of(ModelLocation(repository, name)) for name in poll.held)
            if poll.event is not LossEvent.NONE:
                about = {"repository": repository, "lost": len(poll.held), "known": poll.known, "left": len(present)}
                _log.log(*_LOSS_LINES[poll.event], about)
        return held

    def _warn_unreadable(self, error: Unavailable) -> None:
        _log.warning("model repository cannot be read; served models stay loaded: %(reason)s", {"reason": error.message})

    async def _poll_models(
        self, groups: Mapping[ModelId, tuple[ModelLocation, ...]], now_ns: int, ensembles: list[Candidate]
    ) -> None:
        """Poll some models: one call of a thread for all of them, and no long step of the loop."""
        single = [locations[0] for locations in groups.values() if len(locations) == 1]
        fingerprints = dict(zip(single, await self.source.fingerprints(single), strict=True))
        due: dict[ModelId, tuple[ModelLocation, ...]] = {}
        for model, locations in groups.items():
            fingerprint = fingerprints[locations[0]] if len(locations) == 1 else None
            if len(locations) == 1 and fingerprint is None:
                locations = ()
            if self._debouncer.observe(model, PollResult(locations, fingerprint), now_ns):
                due[model] = locations
        if not due:
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.source.prefetch, _singles(due))
            for model, locations in due.items():
                await self._take(model, locations, why="file change", hold=ensembles)

    async def _take(
        self,
        model: ModelId,
        locations: tuple[ModelLocation, ...],
        *,
        why: str,
        by_name: bool = True,
        hold: list[Candidate] | None = None,
    ) -> Candidate | None:
        """Use the files that the repositories have of a model now. Returns the candidate, if it is one. With `hold`, an ensemble
        is put there instead, to be used by the caller."""
        if not locations:
            self._debouncer.mark_used(model, PollResult())
            self.perform(self.core.forget(model))
            return None
        if len(locations) > 1:
            self._debouncer.mark_used(model, PollResult(locations))
            self.use(self.duplicate(model), why=why)
            return None
        prepared = await self.prepare(locations[0])
        if prepared is None:
            return None  # gone since it was listed; the next poll finds that
        self._debouncer.mark_used(model, PollResult(locations, prepared.fingerprint))
        if hold is not None and isinstance(prepared.outcome, Candidate) and prepared.outcome.components:
            hold.append(prepared.outcome)
        else:
            self.use(prepared.outcome, why=why, by_name=by_name)
        return prepared.outcome if isinstance(prepared.outcome, Candidate) else None

    def duplicate(self, model: ModelId) -> Refused:
        """The refusal of a name that several repositories have."""
        return Refused(id=model, kind=RefusalKind.DUPLICATE, message=DUPLICATE_TEXT)

    def _groups(self, locations: Iterable[ModelLocation]) -> dict[ModelId, tuple[ModelLocation, ...]]:
        groups: dict[ModelId, tuple[ModelLocation, ...]] = {}
        for location in locations:
            model = self.id_of(location)
            groups[model] = (*groups.get(model, ()), location)
        return groups


_LOSS_LINES = {
    LossEvent.BEGUN: (
        logging.WARNING,
        (
            "%(lost)s of %(known)s models disappeared from '%(repository)s' at once: they are unloaded at the second poll from "
            "now unless they come back; SIGHUP unloads them now (--repository-hold-losses)"
        ),
    ),
    LossEvent.CONFIRMED: (
        logging.WARNING,
        "the models that disappeared from '%(repository)s' did not come back and are unloaded; %(left)s are left",
    ),
    LossEvent.OVER: (logging.INFO, "'%(repository)s' has %(left)s models again"),
}


def _singles(groups: Mapping[ModelId, tuple[ModelLocation, ...]]) -> list[ModelLocation]:
    """The directories of models that have one, by name."""
    return [locations[0] for _, locations in sorted(groups.items()) if len(locations) == 1]


def _used(snapshot: Snapshot) -> frozenset[ModelId]:
    """The models that are desired, or loaded in some copy."""
    desired = {model for model, desired in snapshot.desired.items() if desired.versions}
    return frozenset(desired | {key.model for key, seen in snapshot.observed.items() if seen.state is not ModelState.UNAVAILABLE})
