"""The names that users rely on, as the product has them now."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from tests.security.test_restricted_routes import all_routes
from tpy.cli.reference import page
from tpy.telemetry.host import SERVER_FAMILIES

FOLDER = Path(__file__).parent
_MODULES = ("tpy", "tpy.backend", "tpy.testing", "tpy.tritonserver")


def flags() -> list[str]:
    """`command --flag`, of all commands."""
    found, command = set(), ""
    for line in page().splitlines():
        if line.startswith("## tpy "):
            command = line.removeprefix("## tpy ")
        elif command and line.startswith("| `-"):
            found |= {f"{command} {flag}" for flag in re.findall(r"`(--?[\w-]+)`", line.split("|")[1])}
    return sorted(found)


def routes() -> list[str]:
    """`port METHOD path`, of all ports of HTTP, and the methods of gRPC."""
    return sorted({" ".join(route) for route in all_routes()})


def metrics() -> list[str]:
    """Names of metrics with their kinds."""
    return sorted(f"{name} {kind.name.lower()}" for name, kind in SERVER_FAMILIES.items())


def python() -> list[str]:
    """`module.name(parameters)` of the modules for programs, back ends and their tests."""
    found = []
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            try:
                parameters = f"({', '.join(inspect.signature(thing).parameters)})" if callable(thing) else ""
            except ValueError:  # of a class in C
                parameters = "(...)"
            found.append(f"{module_name}.{name}{parameters}")
    return found


SURFACES: dict[str, Callable[[], list[str]]] = {"flags": flags, "routes": routes, "metrics": metrics, "python": python}
