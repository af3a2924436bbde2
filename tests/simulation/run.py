"""One simulation: the story that a seed tells, and the promises that must hold in it."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
import trio
import trio.testing

from tests.simulation.grpc_clients import GrpcClient
from tests.simulation.http_clients import HttpClient
from tests.simulation.journal import Journal
from tests.simulation.operators import Operator, settle
from tests.simulation.world import CHAIN, EXIT_TIMEOUT_S, MODELS, World
from tpy.ids import ModelId
from tpy.messages import ModelState
from tpy_control import ControlMode
from tpy_data.engine.requests.ticket import RequestTicket

T = TypeVar("T")

STOP_SLACK_S = 15.0
"""Time that the end may take beyond the exit time-out: closing what hangs has a time-out of its own."""


class Report(msgspec.Struct, frozen=True):
    """The outcome of a seed. `violations` empty: every promise held."""

    seed: int
    violations: list[str]
    counts: Counter[str]
    journal: list[str]
    digest: str


Story = Callable[[int, Journal, trio.testing.MockClock], Awaitable[None]]


def simulate(seed: int) -> Report:
    """Run the whole server by a seed. Takes about a second; touches no clock, thread, socket or file."""
    return tell(_story, seed)


def tell(story: Story, seed: int) -> Report:
    """Run a story in virtual time."""
    journal = Journal()
    clock = trio.testing.MockClock(autojump_threshold=0)
    threads = set(threading.enumerate())
    with _seeded_trio(seed):
        try:
            trio.run(story, seed, journal, clock, clock=clock)
        except Exception as error:
            journal.violations.append(f"the server or its simulation raised {error!r}")
            journal.lines.extend(_frames(error))
    if set(threading.enumerate()) - threads:  # idle threads of what ran before may end meanwhile
        journal.violations.append("threads were started")
    gc.collect()
    left = sum(issubclass(type(each), RequestTicket) for each in gc.get_objects())
    if left:
        journal.violations.append(f"{left} requests are kept in memory after the end")
    return Report(seed, journal.violations, journal.counts, journal.lines, journal.digest)


async def _story(seed: int, journal: Journal, clock: trio.testing.MockClock) -> None:
    chance = random.Random(f"{seed}/story")
    world = World(seed, journal)
    cut_short = chance.random() < 0.4
    async with trio.open_nursery() as outside:
        async with world.running():
            with trio.move_on_after(chance.choice((0.001, 0.05, 1, 5)) if cut_short else float("inf")):
                async with trio.open_nursery() as clients:
                    story = outside if cut_short else clients
                    for number in range(chance.choice((2, 6, 12))):
                        story.start_soon(HttpClient(world, number).run)
                    for number in range(chance.choice((1, 3, 6))):
                        story.start_soon(GrpcClient(world, number).run)
                    story.start_soon(Operator(world, clock).run)
                    if cut_short:
                        await trio.sleep_forever()
                await settle(world)
                _check_convergence(world)
            stopped_s = trio.current_time()
        if trio.current_time() - stopped_s > EXIT_TIMEOUT_S + STOP_SLACK_S:
            journal.broken(f"stopping took {trio.current_time() - stopped_s} s")
        _check_end(world)
        outside.cancel_scope.deadline = trio.current_time() + 10_000


def _check_convergence(world: World) -> None:
    """The desired state is that of the files, and is served; nothing else is."""
    snapshot = world.store.snapshot()
    wanted = []
    instances = 0
    for name in MODELS:
        desired = snapshot.desired.get(ModelId(name))
        if desired is None:
            world.journal.broken(f"{name} is not desired at the end")
            continue
        files = world.files[name]
        count = 0 if name == CHAIN else desired.config.instance_group[0].count
        if (desired.config.max_batch_size, count) != (files.rows_max, 0 if name == CHAIN else files.instances):
            world.journal.broken(f"{name} is desired with an old configuration")
        if world.mode is ControlMode.POLL and not set(desired.versions) <= set(files.versions):
            world.journal.broken(f"{name} is desired with versions {sorted(desired.versions)} of {sorted(files.versions)}")
        for version in desired.versions.values():
            found = [
                entry
                for key, entry in snapshot.observed.items()
                if (key.model, key.version, key.generation) == (ModelId(name), version.version, version.generation)
            ]
            if not found or found[0].state is not ModelState.READY or found[0].config_revision != desired.config_revision:
                world.journal.broken(f"{name} version {version.version} is desired and not served: {found}")
            if name != CHAIN:
                wanted.append((name, int(version.version), int(version.generation)))
            instances += count
    if sorted(world.backend.loaded) != sorted(wanted):
        world.journal.broken(f"loaded are {sorted(world.backend.loaded)} and wanted {sorted(wanted)}")
    if len(world.backend.instances) != instances:
        world.journal.broken(f"there are {len(world.backend.instances)} instances where {instances} are wanted")
    cache = world.data.cache_statistics()
    if cache is not None:
        world.journal.counts["cache hits"] += cache.hits
        world.journal.counts["cache evictions"] += cache.evictions
    if not world.control.server_ready():
        world.journal.broken(f"the server is not ready although nothing is wrong any more: {world.control.index()}")
    for entry in world.data.statistics():
        if entry.pending_requests:
            world.journal.broken(f"{entry.name} still has {entry.pending_requests} requests waiting")


def _check_end(world: World) -> None:
    """Nothing is left."""
    in_time = world.journal.lines[-1].endswith("in time")
    world.journal.count("stopped in time" if in_time else "stopped at the exit time-out")
    if in_time:
        world.witness.check()
        # What was being made when the server stopped is left behind, as threads are when the process ends.
        stopped_s = next(line for line in world.journal.lines if line.endswith(" stop")).split(" ")[0]
        late = {line.split(" ", 1)[1] for line in world.journal.lines if float(line.split(" ")[0]) >= float(stopped_s)}
        left = [f"load {' '.join(map(str, identity))}" for identity in world.backend.loaded]
        left += [f"create {name}" for name in world.backend.instances]
        if not late.issuperset(left):
            world.journal.broken(f"not released at the end: {left}")
    elif not any(" hang " in line or " lingers " in line for line in world.journal.lines):
        world.journal.broken("nothing hung, and still the exit time-out was reached")


@contextlib.contextmanager
def _seeded_trio(seed: int) -> Iterator[None]:
    """Trio's own choices drawn from the seed, and its threads replaced: MockClock does not wait for them."""
    core = trio._core._run
    to_thread = trio.to_thread.run_sync
    deterministic = core._ALLOW_DETERMINISTIC_SCHEDULING

    async def inline(work: Callable[..., T], *args: object, **options: object) -> T:
        await trio.lowlevel.checkpoint()
        return work(*args)

    core._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    core._r.seed(seed)
    trio.to_thread.run_sync = inline  # type: ignore[assignment]
    try:
        yield
    finally:
        trio.to_thread.run_sync = to_thread
        core._ALLOW_DETERMINISTIC_SCHEDULING = deterministic  # type: ignore[misc]


def _frames(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()
