"""ConfigForms: a served configuration as ports answer it, encoded once for each form."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tpy.config import ModelConfig


class ConfigForms:
    """The configuration of one loaded copy of a model, and its bytes in each form that was asked for."""

    __slots__ = ("_encoded", "_encoding", "config")

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._encoded: dict[Callable[[ModelConfig], bytes], bytes] = {}
        self._encoding = trio.Lock()

    async def encoded(self, encode: Callable[[ModelConfig], bytes]) -> bytes:
        """Returns what `encode` does, which runs once, in a thread: a configuration may have tens of thousands of parameters."""
        if encode not in self._encoded:
            async with self._encoding:
                if encode not in self._encoded:
                    self._encoded[encode] = await trio.to_thread.run_sync(encode, self.config)
        return self._encoded[encode]
