"""An engine that does what its prompts say: "raise", "hang" or "exit" in a step."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from tpy.backend import BackendSettings
from tpy.backend.engine import Delta, EngineRequest
from tpy.testing.fake_engine import FakeEngine, FakeEngineBackend


class HostileEngine(FakeEngine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(context=1000, blocks=1000)
        self._prompts: list[str] = []

    def add(self, request: EngineRequest) -> None:
        super().add(request)
        self._prompts.append(request.prompt)

    def step(self) -> Sequence[Delta]:
        match self._prompts[-1]:
            case "raise":
                raise RuntimeError("the device is lost")
            case "hang":
                threading.Event().wait()
            case "exit":
                os._exit(9)
        return super().step()


def create(settings: BackendSettings) -> FakeEngineBackend:
    """An entry point."""
    return FakeEngineBackend(HostileEngine)
