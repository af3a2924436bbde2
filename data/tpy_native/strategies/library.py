"""StrategyLibrary: a strategy in this process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tpy.errors import TpyError
from tpy_native.library import answer, host


class StrategyModel(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a model that its strategy may ask for. `config` is JSON."""

    name: str
    version: int
    directory: str
    config: str
    outputs: tuple[str, ...]


class StrategyFailure(Exception):
    """A function of the library has returned an error."""


class StrategyLibrary:
    """One model's. One thread at a time."""

    def __init__(self, library: Path, model: StrategyModel) -> None:
        """Load it, and ModelBatcherInitialize. Raises what that returns, and what `Host.prepare` raises."""
        from tpy_native.backend.python_side import callables  # of what compiled backends use, too

        native = host()
        native.start_batches(callables)
        native.prepare(library, "batching")
        self._begin, self._include, self._end, self._close = (
            native.function(f"tpy_strategy_{verb}") for verb in ("begin", "include", "end", "close")
        )
        arguments = (bytes(library), model.name.encode(), model.version, model.directory.encode(), model.config.encode())
        self._pointer: int = answer(native.function("tpy_strategy_open")(*arguments, model.outputs))

    def begin(self) -> None:
        """ModelBatchInitialize. Raises StrategyFailure."""
        self._require("initialization", self._begin(self._pointer))

    def include(self, request: object) -> tuple[bool, str]:
        """ModelBatchIncludeRequest of an ExecutionRequest: the answer, which counts also with an error, and the error's text."""
        included, failure = self._include(self._pointer, request)
        return included, "" if failure is None else failure[1]

    def end(self) -> None:
        """ModelBatchFinalize. Raises StrategyFailure."""
        self._require("finalization", self._end(self._pointer))

    def close(self) -> None:
        """ModelBatcherFinalize. Raises what it returns."""
        answer(self._close(self._pointer))

    def _require(self, what: str, outcome: object) -> None:
        try:
            answer(outcome)
        except TpyError as error:
            raise StrategyFailure(f"Custom batching {what} function failed: {error.message}") from None
