"""Finds an agent by its name, in Python or in C, and gives it the actions on its models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.plugins import installed
from tpy.repository_agent import ENTRY_POINT_GROUP, AgentAction, RepositoryAgent
from tpy_data.agents.contract import HostedAgent, HostedAgentModel, Opened
from tpy_native.library import Host, answer, host


class _NativeAgent:
    """See HostedAgent."""

    def __init__(self, library: Path) -> None:
        """Raises TpyError."""
        self._host = host()
        self._host.prepare(library, "repository agent")
        self._pointer: int = answer(self._host.function("tpy_agent_open")(str(library).encode()))

    def open(self, opened: Opened) -> NativeAgentModel:
        """See HostedAgent."""
        parameters = tuple(text for pair in opened.parameters.items() for text in pair)
        texts = (text.encode() for text in (opened.location, opened.mutable_location, opened.config))
        return NativeAgentModel(
            self._host, answer(self._host.function("tpy_agent_model_open")(self._pointer, *texts, parameters))
        )

    def close(self) -> None:
        """See HostedAgent."""
        answer(self._host.function("tpy_agent_close")(self._pointer))


class NativeAgentModel:
    """See HostedAgentModel."""

    def __init__(self, host: Host, pointer: int) -> None:
        self._host = host
        self._pointer = pointer

    def act(self, action: AgentAction) -> None:
        """See HostedAgentModel."""
        answer(self._host.function("tpy_agent_model_act")(self._pointer, action.value))

    def location(self) -> str:
        """See HostedAgentModel."""
        return str(self._host.function("tpy_agent_model_location")(self._pointer))

    def close(self) -> None:
        """See HostedAgentModel."""
        answer(self._host.function("tpy_agent_model_close")(self._pointer))


def find_agent(name: str, directory: Path) -> HostedAgent:
    """The agent of an entry point, or of `<directory>/<name>/libtritonrepoagent_<name>.so`. Raises TpyError."""
    for entry_point in installed(ENTRY_POINT_GROUP):
        if entry_point.name != name:
            continue
        try:
            return _PythonAgent(entry_point.load()())
        except Exception as error:
            raise Internal(f"repository agent '{name}' cannot be made: {type(error).__name__}: {error}") from error
    file = f"libtritonrepoagent_{name}.so"
    library = directory / name / file
    if "/" in name or not library.is_file():
        raise InvalidArgument(
            f"unable to find repository agent '{name}': unable to find '{file}' for repo agent '{name}', searched: {directory}; "
            f"nor is there an entry point of this name in {ENTRY_POINT_GROUP}"
        )
    return _NativeAgent(library)


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
