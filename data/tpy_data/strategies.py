"""Custom batching strategies: they say which requests belong into a batch, besides the limits of the configuration.

Each is opened by an entry point of the group `tpy.strategies`, NAME = module:attribute, the attribute an OpenFunction. The
parameter TRITON_BATCH_STRATEGY_PATH of a model is a NAME, or the path of a library, for which there is the one that is called
`.so`. A strategy is asked on the loop's thread, for each request that a batch could take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.plugins import LIBRARIES, load, named
from tpy_data.schedulers.core.contract import BatchStrategy, Ticket

GROUP: Final = "tpy.strategies"
STRATEGY_PATH: Final = "TRITON_BATCH_STRATEGY_PATH"
_FILE: Final = "batchstrategy.so"

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class OpenStrategy(BatchStrategy, Protocol):
    """A strategy whose model is loaded."""

    def close(self) -> None:
        """The model is unloaded. Raises what ModelBatcherFinalize returns."""
        ...


class OpenFunction(Protocol):
    """The attribute of an entry point of the group."""

    def __call__(self, library: Path | None, config: ModelConfig, version: int, directory: Path) -> OpenStrategy:
        """Open the strategy of a model's version, whose folder is `directory`. Called in a thread. Raises TpyError."""
        ...


class FoundStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """The name of an entry, and the library that it is to open."""

    name: str = LIBRARIES
    library: Path | None = None


def find_strategy(config: ModelConfig, directory: Path, folders: Sequence[Path]) -> FoundStrategy | None:
    """The one that the parameter of the model in `directory` names, or the first `batchstrategy.so` in the `folders`: of its
    version, the model and the backend; None: not found. Raises InvalidArgument for a path outside the repository, or that is
    not there."""
    if config.dynamic_batching is None:
        return None
    wanted = config.parameter(STRATEGY_PATH)
    if wanted:
        if wanted != LIBRARIES and named(GROUP, wanted):
            return FoundStrategy(name=wanted)
        path, repository = Path(wanted), directory.parent.resolve()
        if not path.is_absolute():
            path = repository / path
        if not path.resolve().is_relative_to(repository):
            raise InvalidArgument("Batching library path escapes model repository.")
        if not path.is_file():
            raise InvalidArgument(f"Batching library path not found: {path}")
        return FoundStrategy(library=path)
    return next((FoundStrategy(library=folder / _FILE) for folder in folders if (folder / _FILE).is_file()), None)


def open_strategy(found: FoundStrategy, config: ModelConfig, version: int, directory: Path) -> OpenStrategy:
    """Open it, for a version of the model in `directory`. Raises TpyError."""
    function: OpenFunction = load(GROUP, found.name, "batching strategy")
    try:
        strategy = function(found.library, config, version, directory)
    except TpyError:
        raise
    except Exception as error:  # of a package that may not be ours
        reason = f"{type(error).__name__}: {error}"
        raise Unavailable(f"the batching strategy '{found.name}' cannot be opened: {reason}") from error
    return strategy if found.library is not None else _Guarded(strategy, config.name)


class StrategyFailures:
    """Logs failures and slow answers of a strategy: the first one, and then every hundredth."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._count = 0

    def __call__(self, text: str) -> None:
        self._count += 1
        if self._count % 100 == 1:
            _log.error("%s", text, extra={"context": {"model": self._model, "failures": self._count}})


class _Guarded:
    """One of a package that may not be ours: what it raises is logged, and batches are formed without it. The scheduler's core
    must not see an exception in the middle of a decision."""

    def __init__(self, strategy: OpenStrategy, model: str) -> None:
        self._strategy = strategy
        self._tell = StrategyFailures(model)

    def begin(self) -> None:
        """As BatchStrategy."""
        self._try(self._strategy.begin, None)

    def include(self, ticket: Ticket) -> bool:
        """As BatchStrategy."""
        return self._try(lambda: bool(self._strategy.include(ticket)), True)

    def end(self) -> None:
        """As BatchStrategy."""
        self._try(self._strategy.end, None)

    def close(self) -> None:
        """As OpenStrategy."""
        self._strategy.close()

    def _try(self, function: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return function()
        except Exception as error:
            self._tell(f"Custom batching function failed: {type(error).__name__}: {error}")
            return otherwise
