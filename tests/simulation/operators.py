"""Operators: edits of the repository, load and unload calls, changing faults, jumps of the clock."""

from __future__ import annotations

import random

import trio
import trio.testing

from tests.simulation.http_clients import PATIENCE_S
from tests.simulation.world import MODELS, World
from tpy.errors import TpyError
from tpy.messages import LoadRequest
from tpy_control import ControlMode


class Operator:
    """Changes things for a while."""

    def __init__(self, world: World, clock: trio.testing.MockClock) -> None:
        self._world = world
        self._clock = clock
        self._chance = random.Random(f"{world.seed}/operator")

    async def run(self) -> None:
        """All of it."""
        chance = self._chance
        async with trio.open_nursery() as nursery:
            for number in range(chance.choice((3, 10, 25))):
                await trio.sleep(chance.choice((0, 0, 0.001, 0.1, 1, 3)))
                if self._world.stopping:
                    break
                self._act(number, nursery)

    def _act(self, number: int, nursery: trio.Nursery) -> None:
        chance, world = self._chance, self._world
        name = chance.choice(MODELS)
        doing = chance.random()
        if doing < 0.35:
            what = world.files[name].change(chance, number)
            world.write(name)
            world.journal.note("edit", name, what)
        elif doing < 0.6:
            world.journal.note("faults", world.backend.faults.draw(chance))
        elif doing < 0.65:
            jump_s = chance.choice((0.5, 5, 40))
            world.journal.note("jump", jump_s)
            self._clock.jump(jump_s)
            world.jumped_s = trio.current_time()
        elif world.mode is ControlMode.EXPLICIT:
            for _ in range(chance.choice((1, 1, 2, 3))):
                nursery.start_soon(self._call, name, chance.choice(("load", "load", "unload", "impatient load")))

    async def _call(self, name: str, what: str) -> None:
        world = self._world
        world.journal.note(what, name)
        patience_s = self._chance.choice((0, 0.001, 0.1)) if what == "impatient load" else PATIENCE_S
        try:
            with trio.move_on_after(patience_s) as patience:
                if what == "unload":
                    await world.control.unload(name)
                else:
                    await world.control.load(LoadRequest(model_name=name))
        except TpyError as error:
            world.journal.note("told", what, name, error)
            world.journal.count(f"{what} refused")
            return
        world.journal.note("done", what, name)
        world.journal.count(what)
        if patience.cancelled_caught and what != "impatient load":
            world.journal.broken(f"the {what} call of {name} did not come back")


async def settle(world: World) -> None:
    """Repair everything and wait until the server has taken it up; then what is desired must be served."""
    world.backend.faults.calm()
    for name, files in world.files.items():
        files.broken = False
        files.rows_max = max(files.rows_max, 4)
        for version in files.versions:
            files.versions[version] = f"repaired {version}"
        world.write(name)
    if world.mode is ControlMode.EXPLICIT:
        for name in MODELS:
            try:
                with trio.move_on_after(PATIENCE_S) as patience:
                    await world.control.load(LoadRequest(model_name=name))
            except TpyError as error:
                world.journal.broken(f"{name} cannot be loaded although nothing is wrong any more: {error}")
            if patience.cancelled_caught:
                world.journal.broken(f"the last load call of {name} did not come back")
    await trio.sleep(300)
