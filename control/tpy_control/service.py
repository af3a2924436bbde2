"""ControlPlane: the repository service, answered by the Plane (plane.py) that has the core and writes what is desired."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from tpy.echo import echo
from tpy.errors import InvalidArgument, ServerNotReady, Unavailable, Unsupported
from tpy.ids import ModelId
from tpy.limits import MODEL_NAME_BYTES_MAX
from tpy.messages import ConfigCheck, IndexEntry, LoadRequest, ModelState
from tpy.state import Snapshot
from tpy.telemetry.exposition import MeasuredFamily
from tpy_control.core.candidate import Candidate, Override, Refused
from tpy_control.core.index import is_served, is_settled, load_error
from tpy_control.core.scan import ModelLocation
from tpy_control.options import ControlMode
from tpy_control.plane import Plane, StartupReport
from tpy_control.preparation import Prepared
from tpy_control.sources.disk import DiskSource

_log = logging.getLogger(__name__)

_NOT_EXPLICIT_TEXT = "explicit model load / unload is not allowed if polling is enabled"

_STOPPING_TEXT = "Server is stopping, models are no longer loaded or unloaded"


_Outcome = tuple[Candidate | Refused, Sequence[ModelId]]
"""The outcome of a load call, and the components of an ensemble that were desired with it."""


class ControlPlane:
    """The repository service of this plane. Made by `run_control_plane`, valid while that runs."""

    def __init__(self, plane: Plane, *, live: bool = True) -> None:
        """Without `live` the repositories could not be read at the start: no model is known, nor ever will be."""
        self._plane = plane
        self._live = live
        self._stopping = False
        self._is_withdrawn = False
        self._ready_at_stop = True
        self._turns: dict[str, _Turn] = {}
        self._waiting: set[anyio.CancelScope] = set()
        self._readiness: tuple[Snapshot, bool] | None = None

    def server_live(self) -> bool:
        """True, unless a repository could not be read at the start."""
        return self._live

    def server_ready(self) -> bool:
        """See RepositoryService. Cheap: answers from the last result until the store changes."""
        may_be_ready = self._live and not self._is_withdrawn and (self._ready_at_stop or not self._stopping)
        if not may_be_ready or not self._plane.options.strict_readiness:
            return may_be_ready
        snapshot = self._plane.store.snapshot()
        if self._readiness is None or self._readiness[0] is not snapshot:
            self._readiness = snapshot, self._plane.strictly_ready(snapshot)
        return self._readiness[1]

    async def model_ready(self, model_name: str, version: int | None = None) -> bool:
        """See RepositoryService."""
        await anyio.lowlevel.checkpoint()
        self._require_live()
        snapshot = self._plane.store.snapshot()
        models = {key.model for key in snapshot.observed if key.model.name == model_name}
        # A request does not tell which of several namespaces it means.
        return len(models) == 1 and is_served(snapshot, models.pop(), version)

    def index(self, *, ready_only: bool = False) -> Sequence[IndexEntry]:
        """See RepositoryService. Names come from the newest listing, which follows the disk within a moment."""
        self._require_live()
        entries = self._plane.index()
        return [entry for entry in entries if entry.state is ModelState.READY] if ready_only else entries

    async def load(self, request: LoadRequest) -> None:
        """See RepositoryService. Loads of one model run one after the other, those of different models at the same time.

        Raises InvalidArgument or Internal with Triton's texts and the reason behind them, Unavailable when an unload overtook it.
        """
        self._require_explicit()
        name = _checked_name(request.model_name)
        async with self._turn(name):
            self._require_explicit()  # the server may have begun to stop while this waited
            models = await self._desire(request)
            await self._wait_loaded(name, models)

    async def unload(self, model_name: str, *, unload_dependents: bool = False) -> None:
        """See RepositoryService."""
        self._require_explicit()
        name = _checked_name(model_name)
        await anyio.lowlevel.checkpoint()
        core = self._plane.core
        models = sorted(model for model in core.models() if model.name == name)  # several under namespacing: all, as Triton
        for model in models:
            self._plane.perform(core.unload(model, why="unload request", components=unload_dependents))
            if all(location.name != name for location in self._plane.known_locations):
                self._plane.perform(core.forget(model))  # made of a call's files only: nothing is left for the index
        # A moment, until the data plane has reacted: after this call the model is gone for every client, as with Triton.
        await self._plane.store.wait_for(lambda newest: all(_answers_no_more(newest, model) for model in models))

    async def check_config(self, model_name: str, config: str | None = None) -> ConfigCheck:
        """See ConfigCheckService. Agents are not asked: what they do to a model's files is not checked."""
        self._require_live()
        plane, name = self._plane, _checked_name(model_name)
        locations = await plane.relist()
        found = [location for location in locations if location.name == name]
        if len(found) != 1:
            has = "no model repository has" if not found else f"{len(found)} model repositories have"
            raise InvalidArgument(f"{has} a model '{echo(name)}'; expected one")
        scan = await plane.source.scan(found[0], config_name=plane.options.model_config_name)
        if scan is None:
            raise InvalidArgument(f"no model repository has a model '{echo(name)}'; expected one")
        plane.source.prepared(scan.directory, is_used=False)
        return await plane.preparation.check(scan, config, known=frozenset(location.name for location in locations))

    async def register(self, path: str, names: Mapping[str, str]) -> None:
        """See RegistrationService."""
        if self._plane.options.mode is not ControlMode.EXPLICIT:
            raise Unsupported("repository registration is not allowed if model control mode is not EXPLICIT")
        await self._plane.source.register(Path(path), names)

    def unregister(self, path: str) -> None:
        """See RegistrationService."""
        self._plane.source.unregister(Path(path))

    def metrics(self) -> list[MeasuredFamily]:
        """The metrics of the repositories."""
        return self._plane.families()

    def withdraw(self) -> None:
        """The server is not ready from now on, whatever else it does: balancers are to send nothing more. Idempotent."""
        self._is_withdrawn = True

    def stop(self, *, ready: bool = False) -> None:
        """Begin the shutdown: from now on nothing is loaded or unloaded, and waiting load calls are answered. The server is not
        ready any more, unless `ready`: open connections are served as before. Idempotent."""
        self._stopping = True
        self._ready_at_stop = ready
        for scope in self._waiting:
            scope.cancel()

    async def wait_startup_settled(self) -> StartupReport:
        """Wait until every version that is loaded at the start is READY or has failed."""
        report = await self._plane.wait_startup_settled()
        self._readiness = None  # it depends on what has failed
        return report

    def _require_live(self) -> None:
        if not self._live:
            raise ServerNotReady

    def _require_explicit(self) -> None:
        self._require_live()
        if self._plane.options.mode is not ControlMode.EXPLICIT:
            raise Unavailable(_NOT_EXPLICIT_TEXT)
        if self._stopping:
            raise Unavailable(_STOPPING_TEXT)

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Held by one load of this name at a time."""
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]

    async def _desire(self, request: LoadRequest) -> list[ModelId]:
        """Desire what a load call asks for. Returns the models to wait for, components of ensembles first."""
        plane, name = self._plane, request.model_name
        locations = [location for location in await plane.relist() if location.name == name]
        if request.files:
            outcomes = [await self._prepare_files(request, locations)]
        elif plane.options.namespacing and locations:  # the model of each namespace, as Triton
            outcomes = [await self._prepare_directory(request, [place]) for place in locations]
        else:
            outcomes = [await self._prepare_directory(request, locations)]
        refused = [outcome for outcome, _ in outcomes if isinstance(outcome, Refused)]
        for outcome in refused:
            if locations or plane.core.is_wanted(outcome.id):
                plane.use(outcome, why="load request")
            else:  # names without a model are not remembered
                _log.warning(f"refused to load '{name}': {outcome.reason}")
        if refused:
            raise refused[0].error()
        return [model for outcome, components in outcomes for model in (*components, outcome.id)]

    async def _prepare_directory(self, request: LoadRequest, locations: Sequence[ModelLocation]) -> _Outcome:
        plane = self._plane
        if not locations:
            return plane.missing(self._wanted_id(request.model_name, locations)), ()
        if len(locations) > 1:
            return plane.duplicate(plane.id_of(locations[0])), ()
        override = None if request.config_json is None else Override(config_json=request.config_json)
        prepared = await plane.prepare(locations[0], override=override)
        if prepared is None:
            return plane.missing(plane.id_of(locations[0])), ()
        return await self._used(prepared)

    async def _prepare_files(self, request: LoadRequest, locations: Sequence[ModelLocation]) -> _Outcome:
        name = request.model_name
        if request.config_json is None:
            text = "files need a configuration; expected the parameter 'config', too"
            raise InvalidArgument(f"failed to load '{name}', failed to poll from model repository: {text}")
        model = self._wanted_id(name, locations)
        async with self._plane.overrides.create(name, request.files) as repository:
            location = ModelLocation(str(repository), name)
            override = Override(config_json=request.config_json, directory=repository)
            source = DiskSource((repository,))
            prepared = await self._plane.prepare(location, source=source, model=model, override=override)
            return (self._plane.missing(model), ()) if prepared is None else await self._used(prepared)

    async def _used(self, prepared: Prepared) -> _Outcome:
        """Desire a candidate, while its files are there. The components of an ensemble come first: it waits for the desired ones,
        and reports what is wrong with the others."""
        components: Sequence[ModelId] = ()
        if isinstance(prepared.outcome, Candidate):
            if prepared.outcome.components:
                components = await self._plane.take_components(prepared.outcome, why="load request")
            self._plane.use(prepared.outcome, why="load request", retry=True)
        return prepared.outcome, components

    def _wanted_id(self, name: str, locations: Sequence[ModelLocation]) -> ModelId:
        """The identity of a model that is loaded, or in one repository, or described by a load call only."""
        plane = self._plane
        wanted = [model for model in plane.core.models() if model.name == name and plane.core.is_wanted(model)]
        if len(wanted) == 1:
            return wanted[0]
        return plane.id_of(locations[0]) if len(locations) == 1 else ModelId(name)

    async def _wait_loaded(self, name: str, models: Sequence[ModelId]) -> None:
        """Wait until the data plane is done with the newest desired state of the models; raise the first failure."""
        self._require_explicit()  # the server may have begun to stop while the disk was read
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                snapshot = await self._plane.store.wait_for(lambda newest: all(_has_ended(newest, model) for model in models))
            finally:
                self._waiting.discard(scope)
        if scope.cancelled_caught:
            raise Unavailable(_STOPPING_TEXT)
        for model in reversed(models):  # an ensemble reports failures of its components itself
            desired = snapshot.desired.get(model)
            if desired is None or not desired.versions:
                raise Unavailable(f"load of model '{name}' was overtaken by an unload of '{model.name}'")
            error = load_error(snapshot, desired)
            if error is not None:
                raise error


class _Turn:
    """The lock of one name, with the number of loads that hold it or wait for it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.users = 0


def _has_ended(snapshot: Snapshot, model: ModelId) -> bool:
    desired = snapshot.desired.get(model)
    return desired is None or is_settled(snapshot, desired)


def _answers_no_more(snapshot: Snapshot, model: ModelId) -> bool:
    """Returns True if no copy of a model takes requests, or it is desired again."""
    desired = snapshot.desired.get(model)
    if desired is not None and desired.versions:
        return True
    return all(observed.state is not ModelState.READY for key, observed in snapshot.observed.items() if key.model == model)


def _checked_name(name: str) -> str:
    """Returns the name if a folder of a repository could have it; raises InvalidArgument otherwise."""
    if not name:
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\0" in name or name in (".", ".."):
        raise InvalidArgument(f"model name must not contain path traversal characters: '{echo(name)}'")
    size_bytes = len(name.encode(errors="surrogatepass"))
    if size_bytes > MODEL_NAME_BYTES_MAX:
        raise InvalidArgument(
            f"invalid model name '{echo(name)}'; expected the name of a directory, which has at most {MODEL_NAME_BYTES_MAX} bytes"
        )
    return name
