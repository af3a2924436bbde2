"""Libraries of custom operators that a configuration names."""

from __future__ import annotations

from pathlib import Path

from tpy.backend import ModelContext


def operator_libraries(context: ModelContext) -> list[str]:
    """Paths of `model_operations.op_library_filename`: a relative one is looked for in the model's directory first, then left to
    the system's loader."""
    operations = context.config.model_operations
    return [
        str(inside) if not Path(name).is_absolute() and (inside := context.model_directory / name).exists() else name
        for name in (operations.op_library_filename if operations is not None else ())
    ]
