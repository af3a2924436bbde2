"""Compiled caches (`libtritoncache_NAME.so`) as stores: in this process, or in a separate one."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from tpy.backend import ModelMetrics
from tpy.errors import AlreadyExists, NotFound, TpyError
from tpy.limits import CACHE_ENTRY_BYTES_MAX, NATIVE_CACHE_CALL_S_MAX
from tpy.units import NS_PER_S
from tpy_data.cache.core.entry import KEY_BYTES
from tpy_data.cache.store import StoreRefusal, StoreUnavailable
from tpy_native.caches.options import CompiledCacheOptions
from tpy_native.library import answer, host
from tpy_native.process import PluginGone, PluginProcess
from tpy_native.surroundings import log_without_model, surroundings

GET: Final = b"G"
PUT: Final = b"P"
FOUND: Final = b"+"
NOTHING: Final = b"0"
REFUSED: Final = b"-"
"""Requests to the process of a cache, and its answers: a letter and what belongs to it."""


class CacheLibrary:
    """A cache in this process. Its functions run without the interpreter lock; it says itself how many threads may call it at a
    time, which the interface does not: one is what this server uses."""

    threads_max = 1
    patience_ns = int(NATIVE_CACHE_CALL_S_MAX * NS_PER_S)

    def __init__(self, name: str, library: Path, settings: Mapping[str, str], metrics: ModelMetrics | None = None) -> None:
        """Load and initialise it. Raises what `Host.prepare` raises, and what it returns."""
        self.name = f"cache '{name}'"
        if metrics is not None:
            surroundings.enter(log_without_model, metrics)
        native = host()
        native.prepare(library, "cache")
        self._functions = tuple(native.function(f"tpy_cache_{verb}") for verb in ("lookup", "insert", "close"))
        self._pointer: int = answer(native.function("tpy_cache_open")(bytes(library), orjson.dumps(dict(settings))))

    def get(self, key: bytes, deadline_s: float) -> bytes | None:
        """See Store. Raises StoreRefusal for any error but that there is nothing."""
        surroundings.enter(log_without_model, None)
        try:
            found: bytes = answer(self._functions[0](self._pointer, key.hex().encode(), CACHE_ENTRY_BYTES_MAX))
        except NotFound:
            return None
        except TpyError as error:
            raise StoreRefusal(error.message) from None
        return found

    def put(self, key: bytes, data: bytes, deadline_s: float) -> None:
        """See Store. What is there already stays there."""
        surroundings.enter(log_without_model, None)
        try:
            answer(self._functions[1](self._pointer, key.hex().encode(), data))
        except AlreadyExists:
            pass
        except TpyError as error:
            raise StoreRefusal(error.message) from None

    def close(self) -> None:
        """Finalize. Raises what the library returns."""
        answer(self._functions[2](self._pointer))


class CacheServer:
    """A cache library, as its process serves it."""

    def __init__(self, library: CacheLibrary) -> None:
        self._library = library

    def answer(self, request: bytes) -> bytes:
        """As `Hosted.answer`."""
        key = request[1 : 1 + KEY_BYTES]
        try:
            if request[:1] == PUT:
                self._library.put(key, request[1 + KEY_BYTES :], 0)
                return NOTHING
            found = self._library.get(key, 0)
            return NOTHING if found is None else FOUND + found
        except StoreRefusal as error:
            return REFUSED + str(error).encode()

    def close(self) -> None:
        """As `Hosted.close`."""
        self._library.close()


class CacheInProcess:
    """A cache in a separate process, which is started again after it has died or was ended because it did not answer."""

    threads_max = 1
    patience_ns = CacheLibrary.patience_ns

    def __init__(self, options: CompiledCacheOptions, metrics: ModelMetrics) -> None:
        """Start it. Raises as `PluginProcess`."""
        self.name = f"cache '{options.name}'"
        self._settings = {
            "name": options.name,
            "library": str(options.library),
            "settings": orjson.dumps(dict(options.settings)).decode(),
        }
        self._metrics = metrics
        self._lock = threading.Lock()
        self._is_closed = False
        self.is_ended = False
        self._is_starting = False
        self._reason = ""
        self._process: PluginProcess | None = self._start()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._process is None else self._process.pid

    def get(self, key: bytes, deadline_s: float) -> bytes | None:
        """See Store."""
        reply = self._exchange(GET + key, deadline_s)
        return reply[1:] if reply[:1] == FOUND else None

    def put(self, key: bytes, data: bytes, deadline_s: float) -> None:
        """See Store."""
        self._exchange(PUT + key + data, deadline_s)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closed = True
            process, self._process = self._process, None
        if process is not None:
            process.close()
        self.is_ended = True

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        process = self._process
        if process is None:
            self._start_again()
            raise StoreUnavailable(self._reason or f"the process of {self.name} is being started")
        try:
            reply = process.exchange(request, max(deadline_s, time.monotonic() + NATIVE_CACHE_CALL_S_MAX / 10))
        except PluginGone as gone:
            self._process = None
            process.kill()
            self._start_again()
            raise StoreUnavailable(str(gone)) from None
        if reply[:1] == REFUSED:
            raise StoreRefusal(reply[1:].decode(errors="replace"))
        return reply

    def _start(self) -> PluginProcess:
        limit = CACHE_ENTRY_BYTES_MAX + 1
        return PluginProcess("tpy_native.caches.process", self.name, self._settings, self._metrics, reply_bytes_max=limit)

    def _start_again(self) -> None:
        """In a separate thread: no request waits for it."""
        if not self._is_starting:
            self._is_starting = True
            threading.Thread(target=self._try_to_start, name="cache-start", daemon=True).start()

    def _try_to_start(self) -> None:
        try:
            process, reason = self._start(), ""
        except TpyError as error:
            process, reason = None, error.message
        with self._lock:
            self._is_starting = False
            self._reason = reason
            if not self._is_closed:
                self._process, process = process, None
        if process is not None:
            process.kill()
