"""Serves an agent to the process that started this one."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from tpy.errors import TpyError
from tpy.repository_agent import AgentAction
from tpy_data.agents.contract import HostedAgent, HostedAgentModel, Opened
from tpy_data.agents.hosting import find_agent


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """`open` a model, give it an `action`, or `close` it; its number is `model`."""

    model: int
    open: Opened | None = None
    action: str = ""
    close: bool = False


_decode_request = msgspec.json.Decoder(_Request).decode


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    location: str = ""


class _Server:
    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory
        self._agent: HostedAgent | None = None
        self._models: dict[int, HostedAgentModel] = {}

    def reply(self, request: _Request) -> _Reply:
        try:
            return _Reply(location=self._do(request))
        except TpyError as error:
            return _Reply(error=error.message or type(error).__name__)

    def _do(self, request: _Request) -> str:
        if request.open is not None:
            if self._agent is None:
                self._agent = find_agent(self._name, self._directory)
            self._models[request.model] = self._agent.open(request.open)
            return ""
        if request.close:
            self._models.pop(request.model).close()
            return ""
        model = self._models[request.model]
        model.act(AgentAction[request.action])
        return model.location()

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()


def _read(lines: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    """In a thread, so that this process ends with the server even while the agent hangs."""
    for line in lines:
        requests.put(line)
        if line == b"\n":
            return
    os._exit(1)


def main() -> None:
    """Serve until an empty line; a closed input ends this process at once."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an agent prints is not a reply
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    server = _Server(sys.argv[1], Path(sys.argv[2]))
    while (line := requests.get()) != b"\n":
        output.write(msgspec.json.encode(server.reply(_decode_request(line))) + b"\n")
        output.flush()
    server.close()


main()
