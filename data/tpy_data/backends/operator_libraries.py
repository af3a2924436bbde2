"""Libraries of custom operators that a configuration names."""

from __future__ import annotations

from pathlib import Path

from tpy.backend import ModelContext
from tpy.errors import InvalidArgument
from tpy.files import require_regular


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
    """Returns the name of a library for the system's loader. Raises InvalidArgument for a path to what is no regular file: the
    loader would wait for the writer of a pipe."""
    try:
        if Path(name).exists():
            require_regular(Path(name))
    except OSError as error:
        raise InvalidArgument(f"the library of operators of model '{model}': {error}") from None
    return name
