"""The sweeps of Model Analyzer's `model_config_parameters`, in which a list stands for alternatives, as settings to vary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tpy.config.model_config import ModelConfig
from tpy_tools.analyze.core.fields import json_text
from tpy_tools.analyze.plan import AnalysisError

Options = dict[str, Any]

_LISTS = frozenset(
    {
        *("preferred_batch_size", "instance_group", "gpus", "profile", "secondary_devices", "resources", "input", "output"),
        *("dims", "gpu_execution_accelerator", "cpu_execution_accelerator", "model_warmup", "control_input", "control", "state"),
        *("initial_state", "step", "batch_input", "batch_output", "target_name", "source_input", "op_library_filename"),
    }
)
"""Fields that are lists themselves: a list of lists stands for alternatives there, any other for one value."""

NOTHING = {"instances": "", "batches": "", "delays": "", "threads": ""}
"""Settings that are not varied."""


def expand(value: Any, *, is_list: bool = False) -> list[Any]:
    """All values that a form stands for: the product of the alternatives inside, in Model Analyzer's order."""
    if is_list:
        if isinstance(value, list) and value and all(isinstance(one, list) for one in value):
            return [made for one in value for made in expand(one, is_list=True)]
        items = value if isinstance(value, list) else [value]
        return [list(chosen) for chosen in itertools.product(*(expand(item) for item in items))]
    if isinstance(value, list):
        return [made for one in value for made in expand(one)]
    if isinstance(value, dict):
        names = list(value)
        parts = (expand(value[name], is_list=name in _LISTS) for name in names)
        return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*parts)]
    return [value]


def sweep_options(where: str, value: Any) -> Options:
    """The options of a form: only its fields are varied. Raises AnalysisError."""
    if not isinstance(value, dict):
        raise AnalysisError(f"{where}: expected fields of the configuration with lists of values, got {value!r}")
    options: Options = dict(NOTHING)
    fields: list[str] = []
    for name, given in value.items():
        if name not in ModelConfig.__struct_fields__:
            raise AnalysisError(f"{where}.{name}: a configuration has no such field")
        values = _values(name, given)
        known = _known(name, values)
        if known is None:
            fields.append(f"{name}=[{','.join(json_text(one) for one in values)}]")
        else:
            options.update(known)
    if fields:
        options["field"] = tuple(fields)
    return options


def _values(name: str, given: Any) -> list[Any]:
    if name == "max_batch_size" and isinstance(given, str):
        given = [int(part) if part.strip().isdecimal() else part for part in given.split(",")]
    return expand(given if given is not None else {}, is_list=name in _LISTS)


def _known(name: str, values: Sequence[Any]) -> Options | None:
    """The named settings that make the same configurations, None if there are no such settings."""
    if name == "max_batch_size":
        return {"batches": _joined(values)} if all(isinstance(one, int) and one > 0 for one in values) else None
    if name == "instance_group":
        return _groups(values)
    if name == "dynamic_batching":
        return _batching(values)
    if name == "parameters":
        return _parameters(values)
    return None


def _groups(values: Sequence[Any]) -> Options | None:
    groups = [one[0] if isinstance(one, list) and len(one) == 1 else None for one in values]
    pairs = [_pair(group, "count", "kind") for group in groups]
    found = _product(pairs)
    if found is None:
        return None
    counts, kinds = found
    if not all(count is None or isinstance(count, int) for count in counts):
        return None
    options = {"instances": _joined([1 if count is None else count for count in counts])}
    return options | ({"kinds": _joined(kinds)} if kinds != [None] else {}) if None not in kinds or kinds == [None] else None


def _batching(values: Sequence[Any]) -> Options | None:
    found = _product([_pair(one, "max_queue_delay_microseconds", "preferred_batch_size") for one in values])
    if found is None:
        return None
    delays, preferred = found
    if not all(delay is None or isinstance(delay, int) for delay in delays):
        return None
    if not all(sizes is None or (isinstance(sizes, list) and len(sizes) == 1) for sizes in preferred):
        return None
    options = {"delays": _joined([0 if delay is None else delay for delay in delays])}
    sizes = [one[0] for one in preferred if one is not None]
    return options | ({"preferred": _joined(sizes)} if sizes else {})


def _parameters(values: Sequence[Any]) -> Options | None:
    """Parameters of the backend are independent of each other."""
    found: dict[str, list[str]] = {}
    for one in values:
        if not isinstance(one, dict) or not all(
            isinstance(form, dict) and form.keys() == {"string_value"} for form in one.values()
        ):
            return None
        for name, form in one.items():
            text = str(form["string_value"])
            if "," in text:
                return None
            found.setdefault(name, [])
            found[name] += [text] * (text not in found[name])
    return {"parameter": tuple(f"{name}={','.join(texts)}" for name, texts in found.items())}


def _pair(form: Any, one: str, other: str) -> tuple[Any, Any] | None:
    return (form.get(one), form.get(other)) if isinstance(form, Mapping) and form.keys() <= {one, other} else None


def _product(pairs: Sequence[tuple[Any, Any] | None]) -> tuple[list[Any], list[Any]] | None:
    """Two lists whose product the pairs are, or None."""
    firsts: list[Any] = []
    seconds: list[Any] = []
    for pair in pairs:
        if pair is None:
            return None
        firsts += [pair[0]] * (pair[0] not in firsts)
        seconds += [pair[1]] * (pair[1] not in seconds)
    return (firsts, seconds) if len(pairs) == len(firsts) * len(seconds) else None


def _joined(values: Sequence[Any]) -> str:
    return ",".join(str(value) for value in dict.fromkeys(values))
