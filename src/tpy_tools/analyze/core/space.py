"""The configurations that are compared: some settings of a model, or of the members of an ensemble, with the values of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tpy.config.model_config import DynamicBatching, InstanceGroup, InstanceKind, ModelConfig, ModelParameter
from tpy_tools.analyze.core.fields import FIELD, THREADS, changed_field, field_text, holds_field, thread_parameter

OFF = "off"
"""The delay of a model without dynamic batching."""

Value = int | str | None

_PARAMETER = "parameter:"

REQUEST_BATCH = "request_batch"
"""A setting of the load, not of a model: the inferences of a request."""

Wishes = Mapping[str, Sequence[Value]]
"""The values that are to be tried, by setting: instances, kind, max_batch_size, delay_us and preferred_batch_size; parameters of
backends are "parameter:NAME", any other field of the configuration is "field:NAME" with its values as JSON."""

_ORDER = ("max_batch_size", "delay_us")


class CandidateConfig(msgspec.Struct, frozen=True):
    """A configuration: the settings that differ from the default."""

    settings: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.settings) or "default"


class Point(msgspec.Struct, frozen=True):
    """A configuration under a level of load, a number of clients or a rate: measured at once."""

    candidate: CandidateConfig
    concurrency: int


class SettingRange(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of one model, and its values in order, the default's among them."""

    model: str
    knob: str
    values: tuple[Value, ...]
    default: Value
    qualified: bool = False

    @property
    def label(self) -> str:
        """The name of the setting in results: with the model in front where there are several."""
        return f"{self.model}/{self.knob}" if self.qualified else self.knob


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """All configurations. `notes` say which wishes make no sense for the model."""

    dimensions: tuple[SettingRange, ...]
    concurrencies: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def candidate(self, chosen: Mapping[str, Value]) -> CandidateConfig:
        """The configuration with these settings, and the default's for the others. The same settings make equal candidates."""
        chosen = dict(chosen)
        for one in self.dimensions:
            if one.knob == "preferred_batch_size":
                delay = self._beside(one, "delay_us")
                size = self._beside(one, "max_batch_size")
                wanted = chosen.get(one.label)
                batched = delay is None or chosen.get(delay.label, delay.default) != OFF
                limit = None if size is None else chosen.get(size.label, size.default)
                if not batched or (isinstance(wanted, int) and isinstance(limit, int) and wanted > limit):
                    chosen.pop(one.label, None)
        pairs = [(one.label, chosen[one.label]) for one in self.dimensions if chosen.get(one.label, one.default) != one.default]
        return CandidateConfig(tuple(pairs))

    def all(self) -> Iterator[CandidateConfig]:
        """Every configuration once, the default first."""
        seen = {CandidateConfig(): None}
        for values in itertools.product(*(one.values for one in self.dimensions)):
            pairs = {one.label: value for one, value in zip(self.dimensions, values, strict=True)}
            seen.setdefault(self.candidate(pairs))
        yield from seen

    def neighbours(self, candidate: CandidateConfig, dimension: SettingRange, step: int) -> Iterator[CandidateConfig]:
        """The configurations from `candidate` on in one direction of a dimension, the next first.

        A larger batch alone changes nothing while nothing batches: dynamic batching is switched on with it.
        """
        chosen = dict(candidate.settings)
        at = dimension.values.index(chosen.get(dimension.label, dimension.default)) + step
        while 0 <= at < len(dimension.values):
            moved = {**chosen, dimension.label: dimension.values[at]}
            if dimension.knob == "max_batch_size" and step > 0:
                delay = self._beside(dimension, "delay_us")
                if delay is not None and moved.get(delay.label, delay.default) == OFF:
                    moved[delay.label] = next((value for value in delay.values if value != OFF), OFF)
            fresh = self.candidate(moved)
            if fresh != candidate:
                yield fresh
            at += step

    def configs(self, base: Mapping[str, ModelConfig], candidate: CandidateConfig) -> dict[str, ModelConfig]:
        """The configurations of the models with the candidate's settings, of all models of `base`."""
        chosen = dict(candidate.settings)
        configs = dict(base)
        fields = [one for one in self.dimensions if one.knob != REQUEST_BATCH]
        for one in sorted(fields, key=lambda one: (one.knob not in _ORDER, one.knob == "preferred_batch_size")):
            configs[one.model] = changed(configs[one.model], one.knob, chosen.get(one.label, one.default))
        return configs

    def _beside(self, dimension: SettingRange, knob: str) -> SettingRange | None:
        """The dimension of another setting of the same model."""
        return next((one for one in self.dimensions if one.model == dimension.model and one.knob == knob), None)


def make_space(
    base: Mapping[str, ModelConfig],
    wishes: Wishes,
    concurrencies: Sequence[int],
    *,
    own: Mapping[str, Wishes] | None = None,
    request_batches: Sequence[int] = (),
) -> Space:
    """The space of wished values around the models' own configurations. An ensemble has no settings, its members have.

    `own`: the wishes of models that have others than `wishes`. `request_batches`: the first is the default.
    """
    dimensions, notes = [], []
    members = {name: config for name, config in base.items() if config.ensemble_scheduling is None}
    for name, config in members.items():
        for wish, values in ((own or {}).get(name, wishes)).items():
            knob, reason = _setting(config, wish)
            if reason:
                notes.append(f"{name}: {wish} stays as it is: {reason}")
                continue
            if not knob:
                continue
            default = read(config, knob)
            ordered = _ordered({*values, default})
            if len(ordered) > 1:
                dimensions.append(SettingRange(model=name, knob=knob, values=ordered, default=default, qualified=len(base) > 1))
    if len(request_batches) > 1:
        sizes = _ordered(set(request_batches))
        dimensions.append(SettingRange(model="", knob=REQUEST_BATCH, values=sizes, default=request_batches[0]))
    return Space(dimensions=tuple(dimensions), concurrencies=tuple(sorted(set(concurrencies))), notes=tuple(notes))


def _setting(config: ModelConfig, wish: str) -> tuple[str, str]:
    """The setting that a wish is for, or the reason why the model does not have it. Neither: it was not asked for by name."""
    if wish not in (THREADS, f"{THREADS}?"):
        return wish, _objection(config, wish)
    name = thread_parameter(config)
    if name:
        return _PARAMETER + name, ""
    named = wish == THREADS
    return "", f"no parameter for a number of threads is known of backend '{config.backend}'" if named else ""


def _ordered(values: set[Value]) -> tuple[Value, ...]:
    """No value, words, and numbers by their size."""

    def key(value: Value) -> tuple[int, float, str]:
        text = "" if value is None else str(value)
        return (0, 0, "") if value is None else (2, float(text), "") if text.lstrip("-").isdecimal() else (1, 0, text)

    return tuple(sorted(values, key=key))


def _objection(config: ModelConfig, knob: str) -> str:
    if knob in ("max_batch_size", "delay_us", "preferred_batch_size"):
        if not config.max_batch_size:
            return "the model does not batch (max_batch_size 0)"
        if config.sequence_batching is not None and knob != "max_batch_size":
            return "it has a sequence batcher"
    return ""


def read(config: ModelConfig, knob: str) -> Value:
    """The value of a setting."""
    batching = config.dynamic_batching
    group = config.instance_group[0] if config.instance_group else InstanceGroup(count=1)
    match knob:
        case "instances":
            return group.count or 1
        case "kind":
            return group.kind.name
        case "max_batch_size":
            return config.max_batch_size
        case "delay_us":
            return OFF if batching is None else batching.max_queue_delay_microseconds
        case "preferred_batch_size":
            return max(batching.preferred_batch_size) if batching is not None and batching.preferred_batch_size else None
    if knob.startswith(FIELD):
        return field_text(config, knob.removeprefix(FIELD))
    return config.parameter(knob.removeprefix(_PARAMETER)) or None


def is_served(served: ModelConfig | None, wanted: ModelConfig, knob: str) -> bool:
    """True when a server took a setting as it was wanted; it may complete a field with what was left out."""
    if served is None:
        return False
    if knob.startswith(FIELD):
        return holds_field(served, wanted, knob.removeprefix(FIELD))
    return read(served, knob) == read(wanted, knob)


def changed(config: ModelConfig, knob: str, value: Value) -> ModelConfig:
    """The configuration with a setting of this value."""
    if value == read(config, knob) and (knob not in ("instances", "kind") or config.instance_group):
        return config
    replace = msgspec.structs.replace
    match knob:
        case "instances" | "kind":
            groups = config.instance_group or (InstanceGroup(count=1),)
            if knob == "instances":
                return replace(config, instance_group=tuple(replace(group, count=value) for group in groups))
            kind = InstanceKind[str(value)]
            gpus = {} if kind is InstanceKind.KIND_GPU else {"gpus": ()}
            return replace(config, instance_group=tuple(replace(group, kind=kind, **gpus) for group in groups))
        case "max_batch_size":
            return _fitting(replace(config, max_batch_size=value))
        case "delay_us":
            if value == OFF:
                return replace(config, dynamic_batching=None)
            batching = config.dynamic_batching or DynamicBatching()
            return replace(config, dynamic_batching=replace(batching, max_queue_delay_microseconds=value))
        case "preferred_batch_size":
            if config.dynamic_batching is None:
                return config
            sizes = () if value is None else (value,)
            return replace(config, dynamic_batching=replace(config.dynamic_batching, preferred_batch_size=sizes))
    if knob.startswith(FIELD):
        return changed_field(config, knob.removeprefix(FIELD), value)
    name = knob.removeprefix(_PARAMETER)
    parameters = {key: given for key, given in config.parameters.items() if key != name}
    if value is not None:
        parameters[name] = ModelParameter(string_value=str(value))
    return replace(config, parameters=parameters)


def _fitting(config: ModelConfig) -> ModelConfig:
    """The same without preferred sizes that are larger than a batch."""
    batching = config.dynamic_batching
    if batching is None or all(size <= config.max_batch_size for size in batching.preferred_batch_size):
        return config
    sizes = tuple(size for size in batching.preferred_batch_size if size <= config.max_batch_size)
    return msgspec.structs.replace(config, dynamic_batching=msgspec.structs.replace(batching, preferred_batch_size=sizes))
