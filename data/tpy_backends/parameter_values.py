"""Values of `parameters` in a configuration, which are text: Triton's booleans and whole numbers, with its words for others,
and libraries of custom operators."""

from __future__ import annotations

from pathlib import Path

from tpy.backend import ModelContext
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy.files import require_regular
from tpy.limits import MODEL_THREADS_MAX

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})


def parse_boolean(text: str) -> bool:
    """Raises InvalidArgument for anything but true, on, 1, false, off and 0, in any case."""
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise InvalidArgument(f"failed to convert '{text}' to boolean")
    return word in _TRUE


def parse_integer(text: str, *, bits: int = 64) -> int:
    """Raises InvalidArgument for what is not a whole number, or does not fit into `bits` bits including the sign."""
    try:
        number = int(text)
    except ValueError:
        number = 1 << bits
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise InvalidArgument(f"failed to convert '{text}' to integral number")
    return number


def require_few_threads(config: ModelConfig, key: str, count: int) -> int:
    """Returns the count of threads that the parameter `key` asks for. Raises InvalidArgument for more than can be meant."""
    if count > MODEL_THREADS_MAX:
        raise InvalidArgument(
            f"parameter '{key}' of model '{config.name}' asks for {count} threads; expected at most {MODEL_THREADS_MAX}"
        )
    return count


def operator_libraries(context: ModelContext) -> list[str]:
    """Paths of `model_operations.op_library_filename`: a relative one is looked for in the model's directory first, then left to
    the system's loader. Raises InvalidArgument."""
    operations = context.config.model_operations
    return [
        checked_library(
            str(inside) if not Path(name).is_absolute() and (inside := context.model_directory / name).exists() else name,
            context.config.name,
        )
        for name in (operations.op_library_filename if operations is not None else ())
    ]


def checked_library(name: str, model: str) -> str:
    """Returns the name of a library for the system's loader. Raises InvalidArgument for a path that is not a regular file: the
    loader would wait for the writer of a pipe."""
    try:
        if Path(name).exists():
            require_regular(Path(name))
    except OSError as error:
        raise InvalidArgument(f"the library of operators of model '{model}': {error}") from None
    return name
