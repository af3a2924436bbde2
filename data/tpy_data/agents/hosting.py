"""Finds an agent by its name, and gives one in Python the actions on its models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.plugins import LIBRARIES, load, named
from tpy.repository_agent import ENTRY_POINT_GROUP, ENTRY_POINT_GROUPS, AgentAction, RepositoryAgent
from tpy_data.agents.contract import HostedAgent, HostedAgentModel, Opened, OpenLibrary


def find_agent(name: str, directory: Path) -> HostedAgent:
    """The agent of an entry point, or of `<directory>/<name>/libtritonrepoagent_<name>.so`. Raises TpyError."""
    for group in ENTRY_POINT_GROUPS:
        if name != LIBRARIES and named(group, name):
            agent = load(group, name, "repository agent")
            try:
                return _PythonAgent(agent())
            except Exception as error:
                raise Internal(f"repository agent '{name}' cannot be made: {type(error).__name__}: {error}") from error
    file = f"libtritonrepoagent_{name}.so"
    library = directory / name / file
    if "/" in name or not library.is_file():
        raise InvalidArgument(
            f"unable to find repository agent '{name}': unable to find '{file}' for repo agent '{name}', searched: {directory}; "
            f"nor is there an entry point of this name in {ENTRY_POINT_GROUP}"
        )
    open_library: OpenLibrary = load(ENTRY_POINT_GROUP, LIBRARIES, "repository agent")
    return open_library(library)


class _PythonAgent:
    def __init__(self, agent: RepositoryAgent) -> None:
        self._agent = agent

    def open(self, opened: Opened) -> HostedAgentModel:
        return _PythonModel(self._agent, opened)

    def close(self) -> None:
        """No-op: agents in Python have no clean-up step."""


class _Model:
    """See AgentModel."""

    def __init__(self, opened: Opened) -> None:
        self.name = opened.name
        self.parameters = opened.parameters
        self.config: Mapping[str, Any] = msgspec.json.decode(opened.config)
        self.directory = Path(opened.location)
        self.is_loading = False
        self._mutable = Path(opened.mutable_location)

    def acquire(self) -> Path:
        self._mutable.mkdir(mode=0o700, exist_ok=True)
        return self._mutable

    def use(self, directory: Path) -> None:
        if not self.is_loading:
            raise ValueError("the folder of a model can be changed in LOAD only")
        self.directory = Path(directory)


class _PythonModel:
    def __init__(self, agent: RepositoryAgent, opened: Opened) -> None:
        self._agent = agent
        self._model = _Model(opened)

    def act(self, action: AgentAction) -> None:
        self._model.is_loading = action is AgentAction.LOAD
        try:
            self._agent.act(action, self._model)
        except TpyError:
            raise
        except Exception as error:
            raise Internal(f"{type(error).__name__}: {error}") from error
        finally:
            self._model.is_loading = False

    def location(self) -> str:
        return str(self._model.directory)

    def close(self) -> None:
        """Nothing to do."""
