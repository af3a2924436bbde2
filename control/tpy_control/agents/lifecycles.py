"""Leads models through the actions of their repository agents.

LOAD goes to each agent in order, when the model's files are read; each sees the folder that the one before it left, and the
configuration in it. When the versions that were loaded from them are READY, LOAD_COMPLETE goes to all in reverse order, or
LOAD_FAIL when no version is; UNLOAD in order when they take no requests any more, UNLOAD_COMPLETE in reverse order when they are
unloaded. The folders of agents are made below one scratch directory of this server, and removed with the model, whatever its
agents did.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec

from tpy.config import ConfigError, ModelConfig
from tpy.config.json_form import to_json
from tpy.config.model_config import RepositoryAgent
from tpy.config.pbtxt import parse_pbtxt
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.files import read_file
from tpy.ids import ModelId
from tpy.limits import CONFIG_BYTES_MAX
from tpy.messages import ModelState
from tpy.repository_agent import AgentAction
from tpy.scratch import ScratchDirectory
from tpy.state import DesiredModel, ModelStateStore, ObservedKey, Snapshot
from tpy_control.agents.process import AgentProcess
from tpy_control.core.agents import CHECKSUM_AGENT, mismatches, required_md5s
from tpy_control.core.candidate import Candidate
from tpy_control.core.scan import CONFIG_FILENAME, ModelLocation, ModelScan
from tpy_control.sources.disk import DiskSource
from tpy_control.sources.protocol import RepositorySource

_log = logging.getLogger(__name__)

_CLEANUP_S_MAX = 10
_SETTLED = (ModelState.READY, ModelState.UNAVAILABLE)


class _Link(msgspec.Struct, kw_only=True):
    """A model at one of its agents."""

    process: AgentProcess
    model: int
    incarnation: int


class Lifecycle:
    """A model from LOAD on. `folder` holds what its agents acquired; `key` is what it was made of."""

    def __init__(self, number: int, folder: Path | None, key: object) -> None:
        self.number = number
        self.folder = folder
        self.key = key
        self.links: list[_Link] = []
        self.candidate: Candidate | None = None
        self.used_by: set[ObservedKey] = set()
        self.last_action = AgentAction.LOAD


class AgentLifecycles:
    """All lifecycles of a server."""

    def __init__(self, command: Callable[[str], Sequence[str]], *, timeout_s: float, parent: Path | None) -> None:
        """`command` returns that of the process of an agent, by its name. `parent`: where the scratch directory is made."""
        self._command = command
        self._timeout_s = timeout_s
        self._parent = parent
        self._root: ScratchDirectory | None = None
        self._making_root = anyio.Lock()
        self._count = 0
        self._links_count = 0
        self._processes: dict[str, AgentProcess] = {}
        self._lifecycles: dict[int, Lifecycle] = {}

    def current(self, model: ModelId, key: object) -> Candidate | None:
        """The candidate that is served already, made of the same files and configuration."""
        for lifecycle in self._lifecycles.values():
            candidate = lifecycle.candidate
            in_use = lifecycle.used_by and lifecycle.last_action in (AgentAction.LOAD, AgentAction.LOAD_COMPLETE)
            if candidate is not None and in_use and candidate.id == model and lifecycle.key == key:
                return candidate
        return None

    async def load(
        self, source: RepositorySource, scan: ModelScan, model: ModelId, config: ModelConfig, key: object
    ) -> tuple[Lifecycle, RepositorySource, ModelLocation]:
        """Give LOAD to the agents of a configuration. Returns where the model is to be read now. Raises TpyError when one
        refuses; the agents that had LOAD then get LOAD_FAIL."""
        agents = () if config.model_repository_agents is None else config.model_repository_agents.agents
        self._count += 1
        lifecycle = Lifecycle(self._count, None, key)
        self._lifecycles[lifecycle.number] = lifecycle
        location = scan.location
        directory = Path(scan.directory)
        try:
            for index, agent in enumerate(agents):
                if agent.name == CHECKSUM_AGENT:
                    await _check_sums(agent, source, location)
                    continue
                found = await self._load_one(lifecycle, index, agent, directory, model, config)
                if found != directory:
                    directory, source = found, DiskSource((found.parent,))
                    location = ModelLocation(str(found.parent), found.name)
                    config = await anyio.to_thread.run_sync(_config_left_in, found, scan.config_path)
        except BaseException:
            await self.fail(lifecycle)
            raise
        return lifecycle, source, location

    async def _load_one(
        self, lifecycle: Lifecycle, index: int, agent: RepositoryAgent, directory: Path, model: ModelId, config: ModelConfig
    ) -> Path:
        if not agent.name or "/" in agent.name or "\0" in agent.name:
            raise InvalidArgument(f"unable to find repository agent '{agent.name}'")
        folder = await self._folder(lifecycle, index)
        process = self._processes.get(agent.name)
        if process is None:
            process = self._processes[agent.name] = AgentProcess(agent.name, self._command(agent.name), self._timeout_s)
        opened = {
            "name": model.name,
            "location": str(directory),
            "mutable_location": str(folder / model.name),
            "config": msgspec.json.encode(to_json(config)).decode(),
            "parameters": agent.parameters,
        }
        self._links_count += 1
        number = self._links_count  # not the lifecycle's: an agent may be twice in a chain
        await process.call({"model": number, "open": opened})
        link = _Link(process=process, model=number, incarnation=process.incarnation)
        lifecycle.links.append(link)
        return Path(await _notify(link, AgentAction.LOAD))

    def keep(self, candidate: Candidate, desired: DesiredModel) -> None:
        """Note which generations are loaded from what the agents left."""
        lifecycle = self._lifecycles.get(candidate.lifecycle)
        if lifecycle is None:
            return
        lifecycle.candidate = candidate
        keys = {ObservedKey(desired.id, version.version, version.generation) for version in desired.versions.values()}
        for other in self._lifecycles.values():
            other.used_by -= keys
        lifecycle.used_by |= keys

    async def fail(self, lifecycle: Lifecycle) -> None:
        """The model is not going to be served."""
        with anyio.CancelScope(shield=True):
            await self._end(lifecycle, AgentAction.LOAD_FAIL)

    async def follow_forever(self, store: ModelStateStore) -> None:
        """Tell the agents what became of their models; runs until cancelled."""
        async with contextlib.aclosing(store.watch()) as changes:
            async for snapshot in changes:
                for lifecycle in reversed(list(self._lifecycles.values())):
                    if lifecycle.candidate is not None:
                        await self._follow(lifecycle, snapshot)

    async def _follow(self, lifecycle: Lifecycle, snapshot: Snapshot) -> None:
        """Give the agents the actions that have become due."""
        seen = [snapshot.observed[key] for key in lifecycle.used_by if key in snapshot.observed]
        wanted = bool(lifecycle.used_by & _desired_keys(snapshot.desired.values()))
        settled = len(seen) == len(lifecycle.used_by) and all(one.state in _SETTLED for one in seen)
        serves = any(one.state is ModelState.READY for one in seen)
        alive = any(one.state is not ModelState.UNAVAILABLE for one in seen)
        if lifecycle.last_action is AgentAction.LOAD:
            if serves and (settled or not wanted):
                await self._notify_all(lifecycle, AgentAction.LOAD_COMPLETE)
            elif (settled or not wanted) and not alive:
                await self._end(lifecycle, AgentAction.LOAD_FAIL)
        if lifecycle.last_action is AgentAction.LOAD_COMPLETE and not wanted and not serves:
            await self._notify_all(lifecycle, AgentAction.UNLOAD)
        if lifecycle.last_action is AgentAction.UNLOAD and not alive:
            await self._end(lifecycle, AgentAction.UNLOAD_COMPLETE)

    async def aclose(self) -> None:
        """Everything is unloaded: tell the agents, for a moment, and leave nothing behind."""
        with anyio.move_on_after(_CLEANUP_S_MAX, shield=True):
            for lifecycle in list(self._lifecycles.values()):
                if lifecycle.last_action is AgentAction.LOAD_COMPLETE:
                    await self._notify_all(lifecycle, AgentAction.UNLOAD)
                fails = lifecycle.last_action is AgentAction.LOAD
                await self._end(lifecycle, AgentAction.LOAD_FAIL if fails else AgentAction.UNLOAD_COMPLETE)
        with anyio.CancelScope(shield=True):
            for process in self._processes.values():
                await process.end()
        if self._root is not None:
            await _in_thread(self._root.remove)

    async def _notify_all(self, lifecycle: Lifecycle, action: AgentAction) -> None:
        """LOAD and UNLOAD go in order, what follows them in reverse order."""
        lifecycle.last_action = action
        for link in lifecycle.links if action is AgentAction.UNLOAD else reversed(lifecycle.links):
            try:
                await _notify(link, action)
            except Unavailable:
                continue
            except TpyError as error:
                _log.error("%(action)s failed: %(reason)s", {"action": action.name, "reason": error.message})

    async def _end(self, lifecycle: Lifecycle, action: AgentAction) -> None:
        self._lifecycles.pop(lifecycle.number, None)
        await self._notify_all(lifecycle, action)
        for link in reversed(lifecycle.links):
            try:
                await link.process.call({"model": link.model, "close": True}, incarnation=link.incarnation)
            except Unavailable:
                continue
            except TpyError as error:
                _log.error("a repository agent failed to release a model: %(reason)s", {"reason": error.message})
        if lifecycle.folder is not None:
            await _in_thread(functools.partial(shutil.rmtree, lifecycle.folder, ignore_errors=True))

    async def _folder(self, lifecycle: Lifecycle, index: int) -> Path:
        """A new folder, in which the agent may make one."""
        async with self._making_root:
            if self._root is None:
                self._root = await anyio.to_thread.run_sync(ScratchDirectory, "tpy-agents-", self._parent)
        lifecycle.folder = self._root.path / str(lifecycle.number)
        folder = lifecycle.folder / str(index)
        await anyio.to_thread.run_sync(functools.partial(folder.mkdir, parents=True))
        return folder


async def _notify(link: _Link, action: AgentAction) -> str:
    return await link.process.call({"model": link.model, "action": action.name}, incarnation=link.incarnation)


def _config_left_in(directory: Path, name: str) -> ModelConfig:
    """That of this name, or config.pbtxt. As Triton: an empty one where an agent left none, or one that cannot be read."""
    try:
        path = directory / name
        content = read_file(path if path.is_file() else directory / CONFIG_FILENAME, bytes_max=CONFIG_BYTES_MAX)
        return parse_pbtxt(content.decode()).config
    except (OSError, UnicodeDecodeError, ConfigError):
        return ModelConfig()


async def _check_sums(agent: RepositoryAgent, source: RepositorySource, location: ModelLocation) -> None:
    required: Mapping[str, str] = required_md5s(agent)
    faults = mismatches(required, {path: await source.md5(location, path) for path in required})
    if faults:
        raise InvalidArgument("; ".join(faults))


def _desired_keys(models: Iterable[DesiredModel]) -> set[ObservedKey]:
    return {ObservedKey(model.id, version.version, version.generation) for model in models for version in model.versions.values()}


async def _in_thread(remove: Callable[[], object]) -> None:
    with anyio.move_on_after(_CLEANUP_S_MAX, shield=True):
        await anyio.to_thread.run_sync(remove, abandon_on_cancel=True)
