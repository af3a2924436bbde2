"""Rollouts: the driver of the cores. It says which version answers requests without one, counts how they end, and keeps what was
decided for the next start of the server."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy.clock import Clock
from tpy.config.rollout import PARAMETER, RolloutPlan, check_fits, given_plan, rollout_plan
from tpy.echo import echo
from tpy.errors import AmbiguousName, NotFound
from tpy.files import UnusableFile, replace_file
from tpy.ids import ModelId, Version
from tpy.limits import ROLLOUT_FILE_BYTES_MAX, ROLLOUT_LOOK_S
from tpy.messages import (
    ModelState,
    RolloutArm,
    RolloutStatus,
)
from tpy.state import UNLOADED, DesiredVersion, Snapshot
from tpy.telemetry.exposition import MeasuredFamily
from tpy.telemetry.rollouts import RolloutShare, rollout_families
from tpy_data.engine.rollouts.core.rollout import Arm, Decision, RolloutCore, RolloutState
from tpy_data.engine.rollouts.kept import FORMAT, FORMAT_WITH_PLAN, Kept
from tpy_data.engine.rollouts.split import Split, difference
from tpy_data.engine.serving.serving_table import Awaited, Served, ServedModel, ServingTable, Turned

if TYPE_CHECKING:
    from tpy_data.engine.rollouts.shadow import Shadows

_log = logging.getLogger(__name__)


class _Model:
    """A model with a plan. `old` is the version that answers; `new` the newer one that is rolled out by `core`, or was. `differs`
    is the reason why the two cannot share requests, "" if they can: it waits, as both may be about to be loaded anew. `kept` is
    what goes on when both are there again, if the files of the new one still have `content`; an empty one is not compared.
    `awaits`: none answers until the old version is there; `deputy` is the newer one that answers because the old one failed.
    `plan` is the one that a call has given, which goes before the model's parameter until a version is promoted or the old one
    is removed."""

    __slots__ = ("awaits", "content", "core", "deputy", "differs", "kept", "new", "old", "plan", "split")

    def __init__(self, old: int, kept: Kept | None) -> None:
        self.old = old
        self.kept = kept
        self.plan = None if kept is None else kept.given_plan
        self.new: Served | None = None
        self.core: RolloutCore | None = None
        self.split: Split | None = None
        self.differs = ""
        self.content: frozenset[tuple[str | int, ...]] = frozenset()
        self.awaits = False
        self.deputy: Served | None = None

    def note(self) -> None:
        """Have the index say how far the new version is."""
        if self.deputy is not None:
            self.deputy.note(f"version {self.old} is not available, so it gets all requests")
            return
        if self.new is None or self.core is None:
            return
        match self.core.state:
            case RolloutState.RUNNING:
                self.new.note(f"rollout: it gets {self._share(self.core)}")
            case RolloutState.ROLLED_BACK:
                self.new.note(f"rolled back: {self.core.reason}")
            case RolloutState.PROMOTED:
                self.new.note("")

    def _share(self, core: RolloutCore) -> str:
        if self.differs:
            return f"no requests: {self.differs}"
        if core.shadow is not None:
            return f"copies of {core.shadow.percent:g} % of the requests"
        return f"{core.percent:g} % of the requests"

    def forget_new(self) -> None:
        """The rollout is over."""
        if self.new is not None:
            self.new.note("")
        self.new, self.core, self.split = None, None, None

    def suspend(self) -> None:
        """The versions are unloaded, and may be loaded again: then the rollout goes on."""
        self.kept = self.line()
        self.forget_new()

    def line(self) -> Kept:
        """Its entry in the file."""
        if self.core is None or self.new is None:
            line = self.kept or Kept(self.old)
        else:
            line = Kept(self.old, self.new.version, self.core.step, self.core.state, self.core.reason)
        if self.plan is None:
            return msgspec.structs.replace(line, format=FORMAT, plan=msgspec.UNSET)
        return msgspec.structs.replace(line, format=FORMAT_WITH_PLAN, plan=self.plan)


class Rollouts:
    """Those of all models of a data plane. `file` has what was decided, None: it is forgotten with the process. Sets the `turn`
    of the table. On the Trio thread; `run` is a task of the data plane's nursery."""

    def __init__(
        self,
        table: ServingTable,
        snapshot: Callable[[], Snapshot],
        answer: Callable[[ModelId, Version | None], None],
        clock: Clock,
        file: Path | None = None,
        kept: Mapping[str, Kept] = MappingProxyType({}),
    ) -> None:
        """`snapshot` says which versions a model is to have, and how far they are; `kept` is what the file had. `answer` is told
        which version of a model answers until another is promoted: it is not unloaded for a newer one. None: whichever is the
        newest."""
        self._table = table
        self._snapshot = snapshot
        self._answer = answer
        self._clock = clock
        self._file = file
        self._kept = dict(kept)
        self._models: dict[ModelId, _Model] = {}
        self._decisions: Counter[tuple[ModelId, RolloutState]] = Counter()
        self._changed: set[ModelId] = set()
        self._is_unwritten = False  # the disk did not take the file: it is written as soon as it does
        self._woken = trio.Event()
        self._shadows: Shadows | None = None
        self._nursery: trio.Nursery | None = None
        self.on_decision: Callable[[Mapping[str, object]], None] = lambda facts: None
        """Told of each decision: the model, the versions, the state, why."""
        table.turn = self.turn

    async def run(self) -> None:
        """Look at what is due, compare answers, and keep what was decided. Runs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            if self._shadows is not None:
                self._nursery.start_soon(self._shadows.run)
            await self._look()

    async def _look(self) -> None:
        while True:
            now_ns = self._clock.now_ns()
            for model, known in tuple(self._models.items()):
                if known.core is not None and (decision := known.core.tick(now_ns)) is not None:
                    self._decided(model, known, decision)
                if known.awaits:
                    self._look_after(model, known)
            changed, self._changed, self._woken = self._changed, set(), trio.Event()
            for model in changed:
                self._table.reconsider(model)
                now_known = self._models.get(model)
                self._answer(model, None if now_known is None else Version(now_known.old))
                if now_known is not None:
                    now_known.note()
            if (changed or self._is_unwritten) and self._file is not None:
                await self._keep(self._file)
            is_running = any(
                known.awaits or (known.core is not None and known.core.due_ns() is not None) for known in self._models.values()
            )
            with trio.move_on_after(ROLLOUT_LOOK_S if is_running or self._is_unwritten else float("inf")):
                await self._woken.wait()

    def turn(self, model: ModelId, served: ServedModel) -> Turned | None:
        """The version that a request without version is described by, and what takes it; None: the newest, as without rollouts.
        Called when a version of the model comes or goes."""
        newest = served.newest
        if newest is None:
            return None
        plan = self._plan(model, newest)
        if plan is None:
            self._forget(model)
            return None
        known = self._known(model, newest)
        if known.new is not None and known.new.version not in served.versions:
            self._new_went(model, known, known.new)
        if known.core is not None and known.core.state is RolloutState.PROMOTED and known.new is newest:
            known.old, known.plan = newest.version, None
            known.forget_new()
            return None
        old = served.versions.get(known.old)
        if old is None or not old.accepts:
            awaited = self._without_old(model, known, old, newest)
            known.awaits = awaited is not None
            return awaited
        known.awaits, known.deputy = False, None
        if newest.version <= known.old:
            return None
        if known.new is not newest or known.core is None:
            if known.new is not None and known.core is not None and known.new.version == newest.version:
                self._replaced(known, known.core, plan)
            self._begin(model, known, old, newest, plan)
        assert known.core is not None
        if known.core.state is RolloutState.ROLLED_BACK:
            return old, old.served_copy
        if known.split is None or (known.split.old, known.split.new) != (old.served_copy, newest.served_copy):
            known.split = Split(
                old.served_copy, newest.served_copy, known.core, self._clock, self._noticer(model, known), self._copying
            )
            known.differs = difference(old.served_copy.description, newest.served_copy.description)
            if known.differs:
                about = {"model": str(model), "new": newest.version, "reason": known.differs}
                _log.warning("model '%(model)s': version %(new)s gets no requests without a version: %(reason)s", about)
        return old, old.served_copy if known.differs else known.split

    def status(self, model_name: str, namespace: str | None = None) -> RolloutStatus:
        """The rollout of a model. Raises NotFound if it has no rollout, AmbiguousName without a namespace if several have a model
        of this name."""
        _, known, core, new = self._find(model_name, namespace)
        return RolloutStatus(
            model=model_name,
            state=core.state.value,
            percent=0.0 if known.differs else core.percent,
            step=core.step + 1,
            steps=core.steps,
            reason=core.reason or known.differs,
            old=_arm(known.old, core, Arm.OLD),
            new=_arm(new.version, core, Arm.NEW),
            compared=core.compared,
            differed=core.differed,
            plan=msgspec.to_builtins(core.plan),
            plan_from="parameter" if known.plan is None else "call",
        )

    def start(self, model_name: str, plan_text: str = "") -> RolloutStatus:
        """The new version begins at the first step, also if it was rolled back, or is not rolled out at all: by the plan of a
        call, by the parameter of the model, or without it by the plan of an earlier call. Raises NotFound unless two versions are
        loaded and there is a plan, InvalidArgument for an impossible one, AmbiguousName as `status`."""
        model, old, new = self._pair(model_name)
        known = self._models.get(model)
        config = new.served_copy.config
        given = given_plan(model_name, plan_text, config)
        if given is None and rollout_plan(config) is None:
            given = None if known is None else known.plan
            if given is None:
                shown = echo(model_name)
                raise NotFound(
                    f"no version of model '{shown}' is rolled out, and it has no parameter '{PARAMETER}': expected a plan"
                )
        if known is None:
            known = self._models[model] = _Model(old.version, None)
        known.plan = given
        if known.core is not None and known.new is not None and known.new.version == new.version:
            plan = given or rollout_plan(config)
            self._decided(model, known, known.core.restart(self._clock.now_ns(), "as asked", plan))
        else:
            known.old, known.kept = old.version, None
        self._table.reconsider(model)
        return self.status(model_name)  # by now it is known whether the versions can share requests

    def promote(self, model_name: str) -> RolloutStatus:
        """The new version gets everything from now on. Raises as `status`."""
        return self._change_state(model_name, RolloutCore.promote)

    def roll_back(self, model_name: str) -> RolloutStatus:
        """The old version gets everything from now on, until another new one is there. Raises as `status`."""
        return self._change_state(model_name, RolloutCore.roll_back)

    def families(self) -> list[MeasuredFamily]:
        """The metrics of rollouts."""
        shares = [
            RolloutShare(model, known.new.version, known.core.percent)
            for model, known in sorted(self._models.items())
            if known.core is not None and known.new is not None
        ]
        decisions = {(model, state.value): count for (model, state), count in sorted(self._decisions.items(), key=str)}
        return rollout_families(shares, decisions)

    def _change_state(self, model_name: str, change: Callable[[RolloutCore, str], Decision]) -> RolloutStatus:
        model, known, core, _ = self._find(model_name)
        self._decided(model, known, change(core, "as asked"))
        status = self.status(model_name)
        self._table.reconsider(model)
        return status

    def _find(self, model_name: str, namespace: str | None = None) -> tuple[ModelId, _Model, RolloutCore, Served]:
        found = self._table.named(model_name) if namespace is None else [ModelId(name=model_name, namespace=namespace)]
        if len(found) > 1:
            raise AmbiguousName(model_name, len(found))
        for model in found:
            known = self._models.get(model)
            if known is not None and known.core is not None and known.new is not None:
                return model, known, known.core, known.new
        raise NotFound(f"no version of model '{echo(model_name)}' is rolled out")

    def _pair(self, model_name: str) -> tuple[ModelId, Served, Served]:
        """The old and the new version of a rollout that is to begin: the newest one, and the one that it is to replace. Raises
        NotFound if no two are loaded, AmbiguousName if several namespaces have a model of this name."""
        found = self._table.named(model_name)
        if len(found) > 1:
            raise AmbiguousName(model_name, len(found))
        served = self._table.model(found[0]) if found else None
        if served is None:
            raise NotFound(f"no version of model '{echo(model_name)}' is loaded, expected an old and a new one to roll out")
        known = self._models.get(found[0])
        versions = [each for each in served.versions.values() if each.accepts]
        if known is not None and known.new is not None and known.new.version in served.versions:
            new: Served | None = served.versions[known.new.version]
            versions = list(served.versions.values())  # what runs goes on while an instance is started again
        else:
            new = ServedModel(served.versions).newest
        older = [] if new is None else [each for each in versions if each.version < new.version]
        if new is None or not older:
            raise NotFound(
                f"of model '{echo(model_name)}' only {_listed(versions)} loaded, expected an old and a new version to roll out; "
                "version_policy says which are loaded"
            )
        before = [each for each in older if known is not None and each.version == known.old]
        return found[0], (before or older)[-1], new

    def _plan(self, model: ModelId, newest: Served) -> RolloutPlan | None:
        """The plan that holds: that of a call before that of the parameter. None: a new version gets everything at once."""
        known = self._models.get(model)
        kept = self._kept.get(str(model)) if known is None else None
        if kept is not None and kept.given_plan is not None:
            known = self._known(model, newest)
        config = newest.served_copy.config
        if known is None or known.plan is None:
            return rollout_plan(config)
        try:
            check_fits(known.plan, config)
        except ValueError as error:
            about = {"model": str(model), "reason": str(error)}
            _log.warning("model '%(model)s': the plan that a call has given does not hold any more: %(reason)s", about)
            known.plan = None
            self._change(model)
            return rollout_plan(config)
        return known.plan

    def _forget(self, model: ModelId) -> None:
        """The model has no plan."""
        gone = self._models.pop(model, None)
        if gone is not None:
            gone.forget_new()
        if self._kept.pop(str(model), None) is not None or gone is not None:
            self._change(model)

    def _known(self, model: ModelId, newest: Served) -> _Model:
        """The model, from now on, if it was not known."""
        known = self._models.get(model)
        if known is not None:
            return known
        kept = self._kept.pop(str(model), None)
        if kept is not None and kept.state is RolloutState.PROMOTED:
            kept = Kept(kept.new)
        # All that a model has at first is there on purpose, in whichever order its versions are loaded.
        known = _Model(max(self._wanted(model), default=newest.version) if kept is None else kept.version, kept)
        self._models[model] = known
        self._change(model)
        return known

    def _wanted(self, model: ModelId) -> Mapping[Version, DesiredVersion]:
        """The versions that a model is to have; empty while it is unloaded as a whole."""
        desired = self._snapshot().desired.get(model)
        return {} if desired is None else desired.versions

    def _has_failed(self, model: ModelId, version: int) -> bool:
        """Returns whether a version that is to be there could not be loaded, or fell."""
        snapshot = self._snapshot()
        desired = snapshot.desired.get(model)
        seen = None if desired is None else snapshot.observed_of(desired).get(Version(version))
        return seen is not None and seen.state is ModelState.UNAVAILABLE and seen.reason != UNLOADED

    def _look_after(self, model: ModelId, known: _Model) -> None:
        """See whether the old version, which is awaited, is still to come. Its failure does not change the table."""
        wanted = self._wanted(model)
        if self._table.model(model) is None:
            known.awaits = False
        elif (wanted and known.old not in wanted) or self._has_failed(model, known.old):
            self._change(model)

    def _without_old(self, model: ModelId, known: _Model, old: Served | None, newest: Served) -> Awaited | None:
        """As `turn`, where the old version takes no requests. One that was not tried, or failed, does not get them all because it
        was loaded faster, or is unloaded later."""
        wanted = self._wanted(model)
        if wanted and known.old not in wanted:
            if newest.version != known.old:
                self._went(model, known, newest)
            return None
        if newest.version <= known.old or known.deputy is newest:
            return None
        if old is None and not self._has_failed(model, known.old):
            if known.core is not None:
                known.suspend()
            if not known.awaits:
                self._change(model)
            return Awaited(known.old)
        about = {"model": str(model), "new": newest.version, "old": known.old}
        _log.error("model '%(model)s': version %(old)s is not available, so %(new)s gets all requests", about)
        known.deputy = newest
        self._change(model)
        return None

    def _replaced(self, known: _Model, core: RolloutCore, plan: RolloutPlan) -> None:
        """The new version was loaded in place of itself: what was decided holds on, if its files are the same. A rollout by
        another plan begins again."""
        if core.state is RolloutState.ROLLED_BACK or core.plan == plan:
            known.suspend()

    def _begin(self, model: ModelId, known: _Model, old: Served, new: Served, plan: RolloutPlan) -> None:
        wanted = self._wanted(model).get(new.version)
        before, known.content = known.content, frozenset() if wanted is None else wanted.content
        kept, known.kept = known.kept, None
        if kept is not None and (kept.new != new.version or (before and before != known.content)):
            kept = None
        known.new, known.split = new, None
        known.core = core = RolloutCore(plan, self._clock.now_ns(), step=0 if kept is None else kept.step)
        if kept is not None and kept.state is RolloutState.ROLLED_BACK:
            core.roll_back(kept.reason)
        else:
            about = {"model": str(model), "new": new.version, "old": old.version, "percent": core.percent}
            text = "model '%(model)s': version %(new)s gets %(percent)g %% of the requests, version %(old)s the others"
            if core.shadow is not None:
                about["percent"] = core.shadow.percent
                text = "model '%(model)s': version %(new)s gets copies of %(percent)g %% of the requests, version %(old)s answers"
            _log.info(text, about)
        self._change(model)

    def _new_went(self, model: ModelId, known: _Model, new: Served) -> None:
        """The new version is not there any more."""
        wanted = self._wanted(model)
        known.suspend()
        if wanted and new.version not in wanted:
            known.kept = None
        self._change(model)

    def _went(self, model: ModelId, known: _Model, newest: Served) -> None:
        """The old version is not to be there any more."""
        about = {"model": str(model), "new": newest.version, "old": known.old}
        if known.core is not None and known.core.state is not RolloutState.PROMOTED:
            _log.warning(
                "model '%(model)s': version %(old)s is gone, so %(new)s gets all requests; the version_policy can keep both",
                about,
            )
        known.old, known.kept, known.deputy, known.plan = newest.version, None, None, None
        known.forget_new()
        newest.note("")
        self._change(model)

    def _copying(self) -> Shadows:
        """The part that copies requests, begun when the first one is to be copied."""
        if self._shadows is None:
            from tpy_data.engine.rollouts.shadow import Shadows  # few servers need it

            self._shadows = Shadows()
            if self._nursery is not None:
                self._nursery.start_soon(self._shadows.run)
        return self._shadows

    def _noticer(self, model: ModelId, known: _Model) -> Callable[[Decision], None]:
        return lambda decision: self._decided(model, known, decision)

    def _decided(self, model: ModelId, known: _Model, decision: Decision) -> None:
        self._decisions[model, decision.state] += 1
        new = 0 if known.new is None else known.new.version
        about: dict[str, object] = {"model": str(model), "new": new, "old": known.old, "reason": decision.reason}
        match decision.state:
            case RolloutState.RUNNING:
                about["percent"] = decision.percent
                _log.info("model '%(model)s': version %(new)s gets %(percent)g %% of the requests: %(reason)s", about)
            case RolloutState.PROMOTED:
                _log.info("model '%(model)s': version %(new)s gets all requests: %(reason)s", about)
            case RolloutState.ROLLED_BACK:
                _log.error("model '%(model)s': version %(new)s is rolled back, %(old)s gets all requests: %(reason)s", about)
        self.on_decision({**about, "state": decision.state.value})
        self._change(model)

    def _change(self, model: ModelId) -> None:
        self._changed.add(model)
        self._woken.set()

    async def _keep(self, file: Path) -> None:
        lines = {**self._kept, **{str(model): known.line() for model, known in self._models.items()}}
        content = msgspec.json.format(msgspec.json.encode(lines), indent=2)
        was_unwritten, self._is_unwritten = self._is_unwritten, False
        try:
            if len(content) > ROLLOUT_FILE_BYTES_MAX:  # a server could not start with it
                raise UnusableFile(f"it would have {len(content)} bytes, expected at most {ROLLOUT_FILE_BYTES_MAX}")
            await trio.to_thread.run_sync(replace_file, file, content)
        except OSError as error:
            self._is_unwritten = not isinstance(error, UnusableFile)
            if not was_unwritten:
                _log.error("--rollout-file %(file)s cannot be written: %(reason)s", {"file": str(file), "reason": str(error)})


def _listed(versions: Sequence[Served]) -> str:
    numbers = ", ".join(str(each.version) for each in versions)
    return f"version {numbers} is" if len(versions) == 1 else f"versions {numbers or 'that take no requests'} are"


def _arm(version: int, core: RolloutCore, arm: Arm) -> RolloutArm:
    counts = core.counts[arm]
    return RolloutArm(version=version, ended=counts.ended, failed=counts.failed, p99_ns=counts.p99_ns())
