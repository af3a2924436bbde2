"""Opens a model's strategy, as the scheduler's core wants it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import orjson

from tpy.backend import Isolation
from tpy.config import ModelConfig
from tpy.config.json_form import to_json
from tpy.errors import NotFound, TpyError
from tpy.limits import (
    NATIVE_STRATEGY_CALL_S_MAX,
    NATIVE_STRATEGY_COUNTED_S,
    NATIVE_STRATEGY_PAUSE_S_MAX,
    NATIVE_STRATEGY_PAUSE_S_MIN,
    NATIVE_STRATEGY_SLOW_S,
    NATIVE_STRATEGY_WAIT_PART,
    NATIVE_STRATEGY_WAIT_S_MAX,
)
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.strategies import OpenStrategy, StrategyFailures
from tpy_native.process import PluginGone, PluginProcess
from tpy_native.strategies.library import StrategyFailure, StrategyLibrary, StrategyModel
from tpy_native.strategies.requests import FETCH, describe, elements

_REPLY_BYTES_MAX: Final = 65536

_log = logging.getLogger(__name__)


def open_strategy(library: Path | None, config: ModelConfig, version: int, directory: Path) -> OpenStrategy:
    """Load and initialise it, in a separate process or in this one, as the model's `isolation` says. Raises TpyError."""
    assert library is not None  # this is the one for libraries
    model = StrategyModel(
        name=config.name,
        version=version,
        directory=str(directory),
        config=orjson.dumps(to_json(config)).decode(),
        outputs=tuple(output.name for output in config.output),
    )
    if config.parameter("isolation") == Isolation.THREAD.value:
        return _Direct(StrategyLibrary(library, model), config.name)
    return _InProcess(library, model)


@contextmanager
def _timed(tell: StrategyFailures) -> Iterator[None]:
    """Log it if the block takes long."""
    began_s = time.monotonic()
    yield
    took_s = time.monotonic() - began_s
    if took_s >= NATIVE_STRATEGY_SLOW_S:
        tell(f"Custom batching include function took {took_s * 1000:.0f} ms, for which the whole server waits")


class _Direct:
    """A library in this process."""

    def __init__(self, library: StrategyLibrary, name: str) -> None:
        self._library = library
        self._tell = StrategyFailures(name)

    def begin(self) -> None:
        """As BatchStrategy."""
        self._try(self._library.begin)

    def include(self, ticket: Ticket) -> bool:
        """As BatchStrategy."""
        try:
            with _timed(self._tell):
                included, failure = self._library.include(ticket)
        except Exception as error:  # an input that has no buffer in host memory
            included, failure = True, str(error)
        if failure:
            self._tell(f"Custom batching include function failed: {failure}")
        return included

    def end(self) -> None:
        """As BatchStrategy."""
        self._try(self._library.end)

    def close(self) -> None:
        """As OpenStrategy."""
        self._library.close()

    def _try(self, function: Callable[[], None]) -> None:
        try:
            function()
        except StrategyFailure as failure:
            self._tell(str(failure))


class _Patience:
    """The time that the loop has waited for slow answers of late, and the bound beyond which it waits for no more."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._at_s = time.monotonic()

    def is_over(self) -> bool:
        """Returns True while no answer is to be asked for."""
        now_s = time.monotonic()
        self._waited_s = max(0.0, self._waited_s - (now_s - self._at_s) * NATIVE_STRATEGY_WAIT_PART)
        self._at_s = now_s
        return self._waited_s >= NATIVE_STRATEGY_WAIT_S_MAX

    def count(self, took_s: float) -> None:
        """An answer took so long."""
        if took_s >= NATIVE_STRATEGY_COUNTED_S:
            self._waited_s += took_s


class _InProcess:
    """A library in a separate process. Beginnings and ends of batches are said together with the next question. When the
    process dies or does not answer in time, batches are formed without it until it is back; when its answers take long, some."""

    def __init__(self, library: Path, model: StrategyModel) -> None:
        self._settings = {"library": str(library), "model": msgspec.json.encode(model).decode()}
        self._name = model.name
        self._tell = StrategyFailures(model.name)
        self._patience = _Patience()
        self._said: list[str] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._process: PluginProcess | None = self._start()

    def begin(self) -> None:
        """As BatchStrategy."""
        self._said.append("begin")

    def include(self, ticket: Ticket) -> bool:
        """As BatchStrategy."""
        process = self._process
        if process is None:
            self._said.clear()
            return True
        if self._patience.is_over():
            self._tell("the batching strategy's answers take too long: batches are formed without it for a while")
            return True
        try:
            question = describe(self._said, ticket)
        except Exception as error:  # an input that is not in host memory
            self._tell(f"Custom batching include function failed: {error}")
            return True
        self._said.clear()
        began_s = time.monotonic()
        try:
            with _timed(self._tell):
                reply = self._ask(process, question, ticket)
            self._patience.count(time.monotonic() - began_s)
        except PluginGone as gone:
            self._process = None
            _log.error("batches are formed without their strategy: %s", gone, extra={"context": {"model": self._name}})
            threading.Thread(target=self._start_again, args=(process,), name="strategy-start", daemon=True).start()
            return True
        if len(reply) > 1:
            self._tell(reply[1:].decode(errors="replace"))
        return reply[:1] == b"1"

    def _ask(self, process: PluginProcess, question: bytes, ticket: Ticket) -> bytes:
        """The answer. The elements of inputs go there when the strategy looks at them. Raises PluginGone."""
        deadline_s = time.monotonic() + NATIVE_STRATEGY_CALL_S_MAX
        reply = process.exchange(question, deadline_s)
        while reply[:1] == FETCH:
            try:
                found = elements(ticket, reply[1:].decode(errors="replace"))
            except NotFound as error:
                raise PluginGone(
                    f"the process of the batching strategy of model '{self._name}' asks for too much: {error}"
                ) from None
            reply = process.exchange(found, deadline_s)
        return reply

    def end(self) -> None:
        """As BatchStrategy."""
        if self._said and self._said[-1] == "begin":
            self._said.pop()  # nobody was asked about that batch
        else:
            self._said.append("end")

    def close(self) -> None:
        """As OpenStrategy."""
        with self._lock:
            self._closed.set()
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _start(self) -> PluginProcess:
        name = f"the batching strategy of model '{self._name}'"
        module = "tpy_native.strategies.process"
        return PluginProcess(module, name, self._settings, CustomMetrics(), reply_bytes_max=_REPLY_BYTES_MAX)

    def _start_again(self, dead: PluginProcess) -> None:
        dead.kill()
        pause_s = NATIVE_STRATEGY_PAUSE_S_MIN
        while not self._closed.is_set():
            try:
                process = self._start()
            except TpyError as error:
                text = "the batching strategy cannot be started again: %s; next try in %g s"
                _log.error(text, error, pause_s, extra={"context": {"model": self._name}})
                self._closed.wait(pause_s)
                pause_s = min(2 * pause_s, NATIVE_STRATEGY_PAUSE_S_MAX)
                continue
            with self._lock:
                if not self._closed.is_set():
                    self._said.clear()
                    self._process = process
                    return
            process.close()
