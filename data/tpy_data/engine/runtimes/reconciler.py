"""The reconciler: watches the store and makes true what is desired. The driver of `runtimes.core.plan`."""

from __future__ import annotations

import logging

import trio

from tpy.config import on_demand
from tpy.errors import invariant
from tpy.ids import ModelId
from tpy.state import DesiredModel, ModelStateStore, ObservedKey
from tpy_data.engine.runtimes.core import Action, Forget, Load, Phase, Resize, Running, Unload, plan
from tpy_data.engine.runtimes.runtime import SUCCESSFULLY_LOADED, Runtime, Shared
from tpy_data.engine.runtimes.version_runtime import VersionRuntime

_log = logging.getLogger(__name__)

WITHOUT_BUDGET = "model '%(model)s' is loaded at once, and stays: its parameter load needs --model-memory-budget"
LOADED_WHEN_ASKED = "'%(model)s' is ready, and is loaded when it is asked for"


class Reconciler:
    """Owns every copy of a version. Their tasks run in the nursery given to `run`."""

    def __init__(self, store: ModelStateStore, shared: Shared) -> None:
        self._store = store
        self._shared = shared
        self._versions: dict[ObservedKey, Runtime] = {}
        self._closing = False
        self._settled: tuple[dict[ModelId, DesiredModel], list[Running]] | None = None
        """The models that were desired and there when the plan was to do nothing."""
        self._loading: dict[ModelId, set[ObservedKey]] = {}

    async def run(self, nursery: trio.Nursery) -> None:
        """Follow the store. Runs until cancelled. Versions write the store when they change, so that wakes this task too."""
        async for snapshot in self._store.watch():
            desired: dict[ModelId, DesiredModel] = {} if self._closing else dict(snapshot.desired)
            running = [version.running() for version in self._versions.values()]
            # Most changes, such as remarks, leave nothing to plan, and a plan for a thousand models takes milliseconds.
            if (desired, running) != self._settled:
                actions = plan(desired, running)
                self._settled = None if actions else (desired, running)
                for action in actions:
                    self._perform(action, nursery)
            for version in self._versions.values():
                if version.phase in (Phase.LOADING, Phase.WAITING):
                    version.reconsider()
            self._log_loaded()

    def close(self) -> None:
        """Desire nothing any more: load nothing, wait for no load under way, and unload everything at once."""
        self._closing = True
        loading = [f"{each.id}:{each.version}" for each in self._versions.values() if each.phase is Phase.LOADING]
        if loading:
            _log.info("not waiting for models that are still loading: %(models)s", {"models": ", ".join(sorted(loading))})
        for version in self._versions.values():
            version.stop()
            version.give_up_starting()

    def versions(self) -> list[Runtime]:
        """All copies that are there."""
        return list(self._versions.values())

    async def wait_closed(self) -> None:
        """After `close`: until every version has ended."""
        await self._store.wait_for(lambda _: not self.unfinished())

    def unfinished(self) -> list[Runtime]:
        """The versions that have not ended."""
        return [version for version in self._versions.values() if version.phase not in (Phase.FAILED, Phase.UNLOADED)]

    def _perform(self, action: Action, nursery: trio.Nursery) -> None:
        if isinstance(action, Load):
            invariant(action.key not in self._versions, f"{action.key} is there already")
            _log.info(
                "loading: %(model)s:%(version)s",
                {"model": str(action.key.model), "version": action.key.version, "why": action.model.why},
            )
            version = self._make(action)
            self._versions[action.key] = version
            nursery.start_soon(version.run, name=f"{action.key.model} version {action.key.version}")
        elif isinstance(action, Resize):
            self._versions[action.key].resize(action.model)
        elif isinstance(action, Unload):
            self._versions[action.key].stop()
        elif isinstance(action, Forget):
            del self._versions[action.key]
            self._shared.writer.forget(action.key)

    def _log_loaded(self) -> None:
        """Log how the load of a model went when all the versions that it began to load have settled, in Triton's words."""
        loading = [version for version in self._versions.values() if version.phase is Phase.LOADING]
        for version in loading:
            self._loading.setdefault(version.id, set()).add(version.key)
        for model in self._loading.keys() - {version.id for version in loading}:
            keys = self._loading.pop(model)
            phases = {self._versions[key].phase for key in keys if key in self._versions}
            serving = sorted({v.version for v in self._versions.values() if v.id == model and v.phase is Phase.SERVING})
            context = {"model": str(model)}
            if self._closing or not phases:
                continue
            if not phases & {Phase.FAILED, Phase.WAITING}:
                is_later = all(self._versions[key].is_on_demand for key in keys if key in self._versions)
                _log.info(LOADED_WHEN_ASKED if is_later else SUCCESSFULLY_LOADED, context)
            elif serving:
                what = "version {} goes" if len(serving) == 1 else "versions {} go"
                context["serving"] = what.format(" and ".join(map(str, serving)))
                _log.warning("failed to load '%(model)s', %(serving)s on serving", context)
            else:
                _log.info("failed to load '%(model)s'", context)

    def _make(self, action: Load) -> Runtime:
        if action.model.config.ensemble_scheduling is not None:
            from tpy_data.engine.runtimes.ensemble_runtime import EnsembleRuntime  # most servers have no ensemble

            return EnsembleRuntime(action.key, action.model, self._shared, self._store)
        make = self._shared.make_runtime
        if make is None:
            make = VersionRuntime
            if on_demand.load_policy(action.model.config).when is not on_demand.LoadWhen.AT_START:
                _log.warning(WITHOUT_BUDGET, {"model": str(action.key.model)})
        return make(action.key, action.model, action.version, self._shared)
