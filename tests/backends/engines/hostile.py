"""An engine that does what its prompts say: "raise", "hang", "freeze" (hang and hold the GIL) or "exit" in a step.

With "hold PIPE" its second step holds the GIL until somebody opens the named pipe for writing; there is a file PIPE.held then.
The answers have the number of sequences in each step.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path

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
            case "freeze":
                ctypes.PyDLL(None).pause()
            case "exit":
                os._exit(9)
        first = self._prompts[0]
        if not first.startswith("hold "):
            return super().step()
        if self.steps == 1:
            Path(f"{first.removeprefix('hold ')}.held").touch()
            os.close(ctypes.PyDLL(None).open(first.removeprefix("hold ").encode(), os.O_RDONLY))
        deltas = super().step()
        return [delta._replace(text=f"{len(deltas)} ") for delta in deltas]


def create(settings: BackendSettings) -> FakeEngineBackend:
    """An entry point."""
    return FakeEngineBackend(HostileEngine)
