"""The names that users rely on, as the product has them now."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import griffe

from tests.security.test_restricted_routes import all_routes
from tests.unit.fake_nvml import FakeNvml
from tests.unit.test_exposition import page as exposition_page
from tests.unit.test_exposition import values
from tpy.cli.reference import page
from tpy.telemetry.gpus import GpuSampler
from tpy.telemetry.host import SERVER_FAMILIES

from .parameters import model_parameters

FOLDER = Path(__file__).parent
_CELL_END = re.compile(r"(?<!\\)\|")
_MODULES = ("tpy", "tpy.backend", "tpy.testing", "tpy.tritonserver")


def flags() -> list[str]:
    """`command --flag=default`, of all commands."""
    found, command = set(), ""
    for line in page().splitlines():
        if line.startswith("## tpy "):
            command = line.removeprefix("## tpy ")
        elif command and line.startswith("| `-"):
            _, names, default, *_ = _CELL_END.split(line)
            value = f"={default.strip(' `')}" if default.strip() else ""
            found |= {f"{command} {flag}{value}" for flag in re.findall(r"`(--?[\w-]+)`", names)}
    return sorted(found)


def routes() -> list[str]:
    """`port METHOD path`, of all ports of HTTP, and the methods of gRPC."""
    return sorted({" ".join(route) for route in all_routes()})


def metrics() -> list[str]:
    """`name{labels} kind`: the labels of all samples of a family, on a page with all families."""
    sampler = GpuSampler(["GPU-a"], FakeNvml())
    sampler.sample()
    shown = set()
    labels: dict[str, set[str]] = {name: set() for name in SERVER_FAMILIES}
    for name, given in values(exposition_page(openmetrics=False, more=sampler.families), openmetrics=False):
        family = name if name in labels else re.sub("_(bucket|count|sum)$", "", name)
        labels[family] |= {label for label, _ in given}
        shown.add(family)
    assert shown == SERVER_FAMILIES.keys(), "a family without a sample shows no labels"
    return sorted(f"{name}{{{','.join(sorted(labels[name]))}}} {kind.name.lower()}" for name, kind in SERVER_FAMILIES.items())


def parameters() -> list[str]:
    """`backend name` of parameters of models."""
    return sorted(f"{backend} {name}" for backend, name in model_parameters())


def python() -> list[str]:
    """`module.name(parameters)` of the modules for programs, back ends and their tests, and `module.class.member(parameters)`:
    what is optional has its default value."""
    loader = griffe.GriffeLoader(search_paths=[FOLDER.parents[1] / "src"])
    package = loader.load("tpy")
    loader.resolve_aliases()
    found = []
    for module_name in _MODULES:
        module = package if module_name == "tpy" else package[module_name.removeprefix("tpy.")]
        for name in map(str, module.exports or ()):
            thing = module[name]
            found.append(f"{module_name}.{name}{_parameters(thing)}")
            if thing.is_class:
                members = {
                    member: about for member, about in thing.all_members.items() if about.is_public and not about.is_module
                }
                found += [
                    f"{module_name}.{name}.{member}{_parameters(about)}{_value(about)}" for member, about in members.items()
                ]
    return sorted(found)


def _parameters(thing: griffe.Object | griffe.Alias) -> str:
    """Those of a function, and of what makes an instance of a class."""
    if thing.is_alias:
        thing = thing.final_target  # type: ignore[union-attr]  # is_alias
    if not isinstance(thing, griffe.Class | griffe.Function):
        return ""
    return "(" + ", ".join(map(_parameter, [each for each in thing.parameters if each.name != "self"])) + ")"


def _value(thing: griffe.Object | griffe.Alias) -> str:
    """The default value of a field, or the value of a constant."""
    return f"={thing.value}" if thing.is_attribute and thing.value is not None else ""


def _parameter(parameter: griffe.Parameter) -> str:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    name = f"{stars.get(parameter.kind, '') if parameter.kind else ''}{parameter.name}"
    return name if parameter.required or name.startswith("*") else f"{name}={parameter.default}"


SURFACES: dict[str, Callable[[], list[str]]] = {
    "flags": flags,
    "routes": routes,
    "metrics": metrics,
    "parameters": parameters,
    "python": python,
}
