"""The protocol of an agent in its process, whatever language it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from tpy.repository_agent import AgentAction


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A model that begins to be loaded. `mutable_location` is a path at which the agent may make a folder."""

    name: str
    location: str
    mutable_location: str
    config: str
    parameters: Mapping[str, str]


class HostedAgentModel(Protocol):
    """A model of an agent. All methods raise TpyError."""

    def act(self, action: AgentAction) -> None:
        """Give the agent this action."""
        ...

    def location(self) -> str:
        """Returns the folder that the model is to be loaded from."""
        ...

    def close(self) -> None:
        """Nothing follows."""
        ...


class HostedAgent(Protocol):
    """An agent."""

    def open(self, opened: Opened) -> HostedAgentModel:
        """A model's life begins. Raises TpyError."""
        ...

    def close(self) -> None:
        """Nothing follows. Raises TpyError."""
        ...


class OpenLibrary(Protocol):
    """The entry point that is called `.so`."""

    def __call__(self, library: Path) -> HostedAgent:
        """The agent in a compiled library. Raises TpyError."""
        ...
