"""The agents of a server, begun with the first model that has one: a server without imports nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from tpy.state import DesiredModel, ModelStateStore
from tpy_control.core.candidate import Candidate

if TYPE_CHECKING:
    from tpy_control.agents.lifecycles import AgentLifecycles


class AgentsWhenNeeded:
    """The AgentLifecycles of a control plane, made for the first model that has an agent."""

    def __init__(self, command: Callable[[str], Sequence[str]], *, timeout_s: float, parent: Path | None) -> None:
        """As `AgentLifecycles`."""
        self._command = command
        self._timeout_s = timeout_s
        self._parent = parent
        self._lifecycles: AgentLifecycles | None = None
        self._begun = anyio.Event()

    def get(self) -> AgentLifecycles:
        """For a model with agents."""
        if self._lifecycles is None:
            from tpy_control.agents.lifecycles import AgentLifecycles  # few servers have agents

            self._lifecycles = AgentLifecycles(self._command, timeout_s=self._timeout_s, parent=self._parent)
            self._begun.set()
        return self._lifecycles

    def keep(self, candidate: Candidate, desired: DesiredModel) -> None:
        """As `AgentLifecycles.keep`."""
        if self._lifecycles is not None:
            self._lifecycles.keep(candidate, desired)

    async def follow_forever(self, store: ModelStateStore) -> None:
        """As `AgentLifecycles.follow_forever`."""
        await self._begun.wait()
        await self.get().follow_forever(store)

    async def aclose(self) -> None:
        """As `AgentLifecycles.aclose`."""
        if self._lifecycles is not None:
            await self._lifecycles.aclose()
