"""Compiled repository agents (`libtritonrepoagent_NAME.so`), in the process that `tpy_data.agents` is."""

from __future__ import annotations

from pathlib import Path

from tpy.repository_agent import AgentAction
from tpy_data.agents.contract import Opened
from tpy_native.library import Host, answer, host


class NativeAgent:
    """See HostedAgent."""

    def __init__(self, library: Path) -> None:
        """Raises TpyError."""
        self._host = host()
        self._host.prepare(library, "repository agent")
        self._pointer: int = answer(self._host.function("tpy_agent_open")(str(library).encode()))

    def open(self, opened: Opened) -> _NativeAgentModel:
        """See HostedAgent."""
        parameters = tuple(text for pair in opened.parameters.items() for text in pair)
        texts = (text.encode() for text in (opened.location, opened.mutable_location, opened.config))
        return _NativeAgentModel(
            self._host, answer(self._host.function("tpy_agent_model_open")(self._pointer, *texts, parameters))
        )

    def close(self) -> None:
        """See HostedAgent."""
        answer(self._host.function("tpy_agent_close")(self._pointer))


class _NativeAgentModel:
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
