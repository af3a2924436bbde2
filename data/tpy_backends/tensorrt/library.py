"""TensorRT's Python package, as a value."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from tpy.errors import Unavailable

MODULES = ("tensorrt", "tensorrt_rtx")
"""The packages with this API, in the order in which they are looked for."""

Library = Any
"""The imported package. The part of its API that is used here is in the tests' recorded one (tests/backends/tensorrt/fake.py),
which a test compares with the installed package."""

Log = Callable[[str, str], None]


def find_library(backend_name: str, wanted: str = "") -> Library:
    """Import TensorRT: the package `wanted`, or the first that is installed. Raises Unavailable when none can be imported."""
    reasons = []
    for name in (wanted,) if wanted else MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reasons.append(str(error))
    raise Unavailable(
        f"backend '{backend_name}' needs TensorRT, which cannot be imported ({'; '.join(reasons)}); install it with tpy's extra "
        "`tensorrt`, or `pip install tensorrt` (`pip install tensorrt-rtx-cu13` for engines of TensorRT for RTX)"
    )


def make_logger(library: Library, log: Log) -> Any:
    """Returns a logger for TensorRT that also keeps its last errors: `take_errors()` returns and forgets them. TensorRT calls it
    from any thread."""
    severities = library.ILogger.Severity
    levels = {
        severities.INTERNAL_ERROR: "error",
        severities.ERROR: "error",
        severities.WARNING: "warning",
        severities.INFO: "verbose",
        severities.VERBOSE: "verbose",
    }

    class TensorRTLogger(library.ILogger):  # type: ignore[misc]  # a class of the package
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self._errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            level = levels.get(severity, "verbose")
            if level == "error":
                del self._errors[: -_ERRORS_KEPT_MAX + 1]
                self._errors.append(msg)
                level = "verbose"  # whoever called fails with it
            log(level, f"TensorRT: {msg}")

        def take_errors(self) -> list[str]:
            errors, self._errors = self._errors, []
            return errors

    return TensorRTLogger()


_ERRORS_KEPT_MAX = 8
"""TensorRT tells the same failure on several levels, the first of which is the cause."""
