"""Asks a cache as the engine does, and waits for the answer."""

from __future__ import annotations

import numpy as np
import trio

from tpy.messages import DataType, Tensor
from tpy_data.cache.core.entry import CachedResponse
from tpy_data.cache.store import ResponseCache

KEY = bytes(range(32))


class Waiter:
    """Waits for a lookup or an insertion."""

    def __init__(self) -> None:
        self.response: CachedResponse | None = None
        self.done = trio.Event()

    def found(self, response: CachedResponse | None) -> None:
        self.response = response
        self.done.set()

    def inserted(self) -> None:
        self.done.set()


async def lookup(cache: ResponseCache, key: bytes = KEY) -> CachedResponse | None:
    waiter = Waiter()
    cache.lookup(key, waiter)
    with trio.fail_after(10):
        await waiter.done.wait()
    return waiter.response


async def insert(cache: ResponseCache, key: bytes = KEY, value: float = 1, elements: int = 2) -> None:
    waiter = Waiter()
    outputs = (Tensor("OUT", DataType.FP32, np.full((elements,), value, np.float32)),)
    cache.insert(key, outputs, {"p": "q"}, owner="m", waiter=waiter)
    with trio.fail_after(10):
        await waiter.done.wait()
