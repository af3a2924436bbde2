"""The rollouts of a data plane, begun with the first model that has a plan: a server without one imports nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from tpy.clock import Clock
from tpy.config.rollout import PARAMETER
from tpy.echo import echo
from tpy.errors import NotFound, TpyError
from tpy.ids import ModelId, Version
from tpy.messages import RolloutStatus
from tpy.state import Snapshot
from tpy.telemetry.exposition import MeasuredFamily
from tpy_data.engine.serving.serving_table import ServedModel, ServingTable, Turned

if TYPE_CHECKING:
    from tpy_data.engine.rollouts.kept import KeptRollouts
    from tpy_data.engine.rollouts.rollouts import Rollouts


class RolloutsWhenNeeded:
    """The Rollouts of a data plane, made for the first model that has a plan. Sets the `turn` of the table. On the Trio thread;
    `run` is a task of the data plane's nursery."""

    def __init__(
        self,
        table: ServingTable,
        snapshot: Callable[[], Snapshot],
        answer: Callable[[ModelId, Version | None], None],
        clock: Clock,
    ) -> None:
        """As `Rollouts`."""
        self.on_decision: Callable[[Mapping[str, object]], None] = lambda facts: None
        """Told of each decision: the model, the versions, the state, why."""
        self._table = table
        self._snapshot = snapshot
        self._answer = answer
        self._clock = clock
        self._begun: Rollouts | None = None
        self._nursery: trio.Nursery | None = None
        table.turn = self._turn

    def go_on(self, kept: KeptRollouts) -> None:
        """Begin with what the file of --rollout-file has, and keep there what is decided."""
        from tpy_data.engine.rollouts.rollouts import Rollouts  # few servers need it

        self._begin(partial(Rollouts, file=kept.file, kept=kept.lines))

    async def run(self) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            if self._begun is not None:
                self._nursery.start_soon(self._begun.run)
            await trio.sleep_forever()

    def status(self, model_name: str, namespace: str | None = None) -> RolloutStatus:
        """As `Rollouts.status`."""
        return self._get(model_name).status(model_name, namespace)

    def start(self, model_name: str, plan_text: str = "") -> RolloutStatus:
        """As `Rollouts.start`."""
        if self._begun is not None:
            return self._begun.start(model_name, plan_text)
        from tpy_data.engine.rollouts.rollouts import Rollouts  # few servers need it

        rollouts = self._make(Rollouts)
        try:
            status = rollouts.start(model_name, plan_text)
        except TpyError:
            self._table.turn = self._turn  # a call that is refused, of a wrong name for example, leaves nothing behind
            raise
        self._begin_with(rollouts)
        return status

    def promote(self, model_name: str) -> RolloutStatus:
        """As `Rollouts.promote`."""
        return self._get(model_name).promote(model_name)

    def roll_back(self, model_name: str) -> RolloutStatus:
        """As `Rollouts.roll_back`."""
        return self._get(model_name).roll_back(model_name)

    def families(self) -> list[MeasuredFamily]:
        """As `Rollouts.families`."""
        return [] if self._begun is None else self._begun.families()

    def _get(self, model_name: str) -> Rollouts:
        if self._begun is None:
            raise NotFound(f"no version of model '{echo(model_name)}' is rolled out")
        return self._begun

    def _turn(self, model: ModelId, served: ServedModel) -> Turned | None:
        if served.newest is None or not served.newest.served_copy.config.parameter(PARAMETER, ""):
            return None
        from tpy_data.engine.rollouts.rollouts import Rollouts  # few servers need it

        return self._begin(Rollouts).turn(model, served)

    def _begin(self, make: Callable[..., Rollouts]) -> Rollouts:
        rollouts = self._make(make)
        self._begin_with(rollouts)
        return rollouts

    def _make(self, make: Callable[..., Rollouts]) -> Rollouts:
        """Rollouts that have the `turn` of the table, and do not run yet."""
        rollouts = make(self._table, self._snapshot, self._answer, self._clock)
        rollouts.on_decision = self._tell
        return rollouts

    def _begin_with(self, rollouts: Rollouts) -> None:
        self._begun = rollouts
        if self._nursery is not None:
            self._nursery.start_soon(rollouts.run)

    def _tell(self, facts: Mapping[str, object]) -> None:
        self.on_decision(facts)
