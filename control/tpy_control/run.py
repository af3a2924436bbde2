"""Runs the control plane: all its tasks are started here."""

from __future__ import annotations

import functools
import logging

import anyio

from tpy.clock import Clock, SystemClock
from tpy.errors import InvalidArgument, Unavailable
from tpy.state import DesiredWriter, ModelStateStore
from tpy_control.agents import AgentsWhenNeeded
from tpy_control.core.agents import CHECKSUM_AGENT
from tpy_control.offload import Offload, in_thread
from tpy_control.options import ControlMode, ControlOptions
from tpy_control.overrides import OverrideDirectories
from tpy_control.plane import ALL_MODELS, Plane
from tpy_control.preparation import Preparation
from tpy_control.service import ControlPlane
from tpy_control.sources.disk import DiskSource
from tpy_control.sources.protocol import RepositorySource

_log = logging.getLogger(__name__)


async def run_control_plane(
    options: ControlOptions,
    store: ModelStateStore,
    writer: DesiredWriter,
    *,
    source: RepositorySource | None = None,
    clock: Clock | None = None,
    offload: Offload = in_thread,
    task_status: anyio.abc.TaskStatus[ControlPlane] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Scan the repositories and keep the desired state up to date until cancelled.

    Started after the first scan, when everything to be loaded at the start is desired (not yet loaded: see
    `ControlPlane.wait_startup_settled`); hands out the service. `writer` is the one of `store`. `source` None: that of
    the options. Opens one task group for its own tasks, under any event loop that anyio has. Removes the directories of `file:`
    overrides at the end, so it is to end after the data plane has unloaded.

    Raises InvalidArgument for options that contradict each other, Unavailable for a repository that cannot be read at the start;
    with `require_repositories` false the server is then never live nor ready, as Triton's.
    """
    require_sound(options)
    clock = SystemClock() if clock is None else clock
    source = await _open(options, clock) if source is None else source
    overrides = OverrideDirectories(options.scratch_directory)
    agents = AgentsWhenNeeded(
        functools.partial(_agent_command, options.agent_command),
        timeout_s=options.agent_timeout_s,
        parent=options.scratch_directory,
    )
    plane = Plane(
        options,
        store=store,
        writer=writer,
        source=source,
        preparation=Preparation(auto_complete=options.auto_complete, offload=offload, agents=agents),
        overrides=overrides,
        agents=agents,
        clock=clock,
    )
    try:
        try:
            await plane.relist()  # a repository that cannot be read is reported before any task runs
        except Unavailable as error:
            if options.require_repositories:
                raise
            _log.error("%s", error.message)
            task_status.started(ControlPlane(plane, live=False))
            await anyio.sleep_forever()
        async with anyio.create_task_group() as tasks, plane.reloaded():
            if options.mode is not ControlMode.NONE:
                # Before the first scan, so that no change is lost between the two.
                tasks.start_soon(source.watch, plane.wake)
            tasks.start_soon(agents.follow_forever, store)
            tasks.start_soon(plane.keep_answering_forever)
            await plane.start()
            if options.cloud is not None:
                tasks.start_soon(plane.return_unused_forever)
            task_status.started(ControlPlane(plane))
            if options.mode is ControlMode.POLL:
                tasks.start_soon(plane.poll_forever)
            elif options.mode is ControlMode.EXPLICIT:
                tasks.start_soon(plane.follow_listing_forever)
                tasks.start_soon(overrides.remove_unused_forever, store)
            await anyio.sleep_forever()
    finally:
        await agents.aclose()
        await overrides.aclose()
        await source.aclose()


def _agent_command(command: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The command of an agent's process. Raises InvalidArgument if no agents are run."""
    if not command:
        raise InvalidArgument(f"unable to find repository agent '{name}'; expected '{CHECKSUM_AGENT}'")
    return (*command[:-1], name, command[-1])


async def _open(options: ControlOptions, clock: Clock) -> RepositorySource:
    """The source of the repositories."""
    if options.cloud is None:
        return DiskSource(options.folders)
    from tpy_control.sources.several import open_source  # most servers have folders only

    return await anyio.to_thread.run_sync(open_source, options.repositories, options.cloud, clock)


def require_sound(options: ControlOptions) -> None:
    """Raise InvalidArgument for options that contradict each other."""
    if not options.repositories:
        raise InvalidArgument("--model-repository must be specified")
    if options.load_models and options.mode is not ControlMode.EXPLICIT:
        raise InvalidArgument("--load-model needs --model-control-mode=explicit")
    if "*" in options.load_models and options.load_models != ALL_MODELS:
        raise InvalidArgument("--load-model=* loads all models and cannot be combined with names")
    if options.mode is ControlMode.POLL and options.poll_interval_ns <= 0:
        raise InvalidArgument("--repository-poll-secs must be greater than 0 in mode poll")
