"""Repository agents in Python: code that sees a model's folder before it is loaded, and may put another in its place.

An agent is a class without arguments, under the entry point group `tpy.agents`; configurations name it as they name
Triton's: `model_repository_agents { agents [ { name: "decrypt" parameters [...] } ] }`. It runs in a separate process.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

ENTRY_POINT_GROUP: Final = "tpy.agents"
ENTRY_POINT_GROUPS: Final = (ENTRY_POINT_GROUP, "tpy.repository_agents")
"""The second is the name that the group had at first; packages may still use it."""


class AgentAction(enum.Enum):
    """The events in the life of a model: LOAD, then LOAD_FAIL, or LOAD_COMPLETE, UNLOAD and UNLOAD_COMPLETE. Triton's numbers."""

    LOAD = 0
    LOAD_COMPLETE = 1
    LOAD_FAIL = 2
    UNLOAD = 3
    UNLOAD_COMPLETE = 4


class AgentModel(Protocol):
    """A model from its LOAD to the end. Agents may set their own attributes on it."""

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def parameters(self) -> Mapping[str, str]:
        """Those of the agent in the model's configuration."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration in `directory`, in its JSON form: the repository's, or what the agent before this one left there
        (an empty one if it left none)."""
        ...

    @property
    def directory(self) -> Path:
        """The model's folder: that of the repository, or the one that an agent before this has put in its place. Not to be
        written to."""
        ...

    def acquire(self) -> Path:
        """Returns an empty folder for this agent, always the same one; removed when the model is unloaded. Raises OSError."""
        ...

    def use(self, directory: Path) -> None:
        """Have the model loaded from this folder. Raises ValueError outside of LOAD."""
        ...


class RepositoryAgent(Protocol):
    """Handles the actions on models, one at a time."""

    def act(self, action: AgentAction, model: AgentModel) -> None:
        """Handle an action. What it raises in LOAD refuses the model; later it is only logged."""
        ...
