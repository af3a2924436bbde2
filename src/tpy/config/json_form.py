"""The JSON forms of a configuration: what the model_configuration extension answers, and what a load override carries."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast

import numpy as np

from tpy import limits
from tpy.config import lenient_json
from tpy.config.model_config import ModelConfig
from tpy.config.problem import ConfigError, Problem
from tpy.config.schema import INTEGER_RANGE, MODEL_CONFIG, Cardinality, EnumSchema, FieldSchema, MessageSchema, Scalar

JsonValue = Any
"""A value of json.loads: None, bool, int, float, str, list, dict."""

_KEPT_AS_STRINGS: Final = frozenset(
    {
        ("inference.ModelInstanceGroup.SecondaryDevice", "device_id"),
        ("inference.ModelSequenceBatching.InitialState", "dims"),
        ("inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape", "dim"),
    }
)
"""64-bit fields that Triton leaves in protobuf's string form; it rewrites all others into numbers."""

_OVERRIDE: Final = "Invalid config override: "


def to_json(config: ModelConfig) -> dict[str, JsonValue]:
    """The configuration as /v2/models/M/config answers it.

    Names in snake_case, enums as names; every scalar, list and map is there even at its default, an unset message or oneof
    member is not. Numbers that JSON does not have (NaN, infinities) are the strings of protobuf's JSON form.
    """
    return _write(config, MODEL_CONFIG)


def parse_json(text: str | bytes) -> ModelConfig:
    """Read a `config` override by protobuf's JSON rules: fields in snake_case or lowerCamelCase, null as not given, 64-bit
    integers as numbers or strings, enums by name in any case or by number; syntax as `lenient_json`.

    Raises ConfigError with all problems, each in Triton's words after "Invalid config override: ".
    """
    if len(text) > limits.CONFIG_BYTES_MAX:
        _refuse(f"the configuration is longer than {limits.CONFIG_BYTES_MAX} bytes")
    try:
        value = lenient_json.loads(text if isinstance(text, str) else text.decode())
    except RecursionError:
        _refuse("nested too deeply")
    except ValueError as error:
        _refuse(f"not JSON: {error}")
    reader = _Reader()
    config = reader.message(value, MODEL_CONFIG, "")
    if reader.problems:
        raise ConfigError(reader.problems, message=_OVERRIDE + "\n".join(problem.message for problem in reader.problems))
    return cast(ModelConfig, config)


def _refuse(message: str) -> NoReturn:
    raise ConfigError([Problem(message=message)], message=_OVERRIDE + message) from None


def _write(value: Any, schema: MessageSchema) -> dict[str, JsonValue]:
    written: dict[str, JsonValue] = {}
    for field in schema.fields.values():
        given = getattr(value, field.attribute)
        if field.has_presence and given is None:
            continue
        as_string = (schema.full_name, field.name) in _KEPT_AS_STRINGS
        if field.cardinality is Cardinality.REPEATED:
            written[field.name] = [_write_element(item, field.kind, as_string) for item in given]
        elif field.cardinality is Cardinality.MAP:
            written[field.name] = {str(key): _write_element(item, field.kind, as_string) for key, item in given.items()}
        else:
            written[field.name] = _write_element(given, field.kind, as_string)
    return written


def _write_element(value: Any, kind: Scalar | EnumSchema | MessageSchema, as_string: bool) -> JsonValue:
    if isinstance(kind, MessageSchema):
        return _write(value, kind)
    if isinstance(kind, EnumSchema):
        return kind.name_of[value]
    if kind in (Scalar.FLOAT, Scalar.DOUBLE):
        return _write_float(value, kind)
    return str(value) if as_string else value


def _write_float(value: float, kind: Scalar) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # The shortest digits that give the same 32-bit number, as protobuf prints them: 0.1, not 0.10000000149011612.
    return float(str(np.float32(value))) if kind is Scalar.FLOAT else value


class _Reader:
    """One pass over one override; keeps all problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def message(self, value: JsonValue, schema: MessageSchema, path: str) -> Any:
        if not isinstance(value, dict):
            if path:
                self._invalid(path, value, f"type.googleapis.com/{schema.full_name}")
            else:
                self._problem("", ": Root element must be a message.")
            return schema.struct()
        values: dict[str, Any] = {}
        chosen: dict[str, str] = {}
        for name, given in value.items():
            field = schema.by_json_name.get(name)
            if field is None:
                self._problem(
                    _join(path, name), f"({path}) {name}: Cannot find field." if path else f"{name}: Cannot find field."
                )
            elif given is not None:
                rival = chosen.setdefault(field.oneof, field.name) if field.oneof is not None else field.name
                if rival != field.name:
                    text = f"invalid value oneof field '{field.oneof}' is already set. Cannot set '{name}' for type oneof"
                    self._problem(_join(path, name), f"({path}): {text}" if path else f": {text}")
                values[field.attribute] = self._field(given, field, _join(path, field.name))
        return schema.struct(**values)

    def _field(self, value: JsonValue, field: FieldSchema, path: str) -> Any:
        if field.cardinality is Cardinality.REPEATED:
            items = value if isinstance(value, list) else [value]  # protobuf takes a lone value for a list of one
            if isinstance(field.kind, MessageSchema):
                items = [item for item in items if item is not None]
            return tuple(self._element(item, field.kind, f"{path}[{index}]") for index, item in enumerate(items))
        if field.cardinality is Cardinality.MAP:
            return self._map(value, field, path)
        return self._element(value, field.kind, path)

    def _map(self, value: JsonValue, field: FieldSchema, path: str) -> Mapping[Any, Any]:
        if not isinstance(value, dict):
            self._invalid(path, value, "Map")
            return {}
        entries: dict[Any, Any] = {}
        for index, (name, given) in enumerate(value.items()):
            key = self._element(name, field.key or Scalar.STRING, f"{path}[{index}].key")
            if given is None and isinstance(field.kind, MessageSchema):
                given = {}
            entries[key] = self._element(given, field.kind, f"{path}[{index}].value")
        return dict(sorted(entries.items()))

    def _element(self, value: JsonValue, kind: Scalar | EnumSchema | MessageSchema, path: str) -> Any:
        if isinstance(kind, MessageSchema):
            return self.message(value, kind, path)
        read = _read_enum(value, kind) if isinstance(kind, EnumSchema) else _read_scalar(value, kind)
        if read is None:
            name = f"type.googleapis.com/{kind.full_name}" if isinstance(kind, EnumSchema) else f"TYPE_{kind.name}"
            self._invalid(path, value, name)
            return next(iter(kind.by_number.values())) if isinstance(kind, EnumSchema) else _ZERO[kind]
        return read

    def _invalid(self, path: str, value: JsonValue, type_name: str) -> None:
        self._problem(path, f"({path}): invalid value {_shown(value)} for type {type_name}")

    def _problem(self, path: str, message: str) -> None:
        if len(self.problems) < limits.CONFIG_PROBLEMS_MAX:
            self.problems.append(Problem(field=path, message=message))


_ZERO: Final[Mapping[Scalar, Any]] = {
    **dict.fromkeys(INTEGER_RANGE, 0),
    Scalar.FLOAT: 0.0,
    Scalar.DOUBLE: 0.0,
    Scalar.BOOL: False,
    Scalar.STRING: "",
}


def _read_enum(value: JsonValue, kind: EnumSchema) -> Any:
    if isinstance(value, str):
        named = kind.by_name.get(value.upper().replace("-", "_"))
        return kind.by_number.get(int(value)) if named is None and _ENUM_NUMBER.fullmatch(value) else named
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        return kind.by_number.get(int(value))
    return None


def _read_scalar(value: JsonValue, kind: Scalar) -> Any:
    """The value, or None when it is not one of this kind."""
    if kind is Scalar.STRING:
        return value if isinstance(value, str) and not _SURROGATE.search(value) else None
    if kind is Scalar.BOOL:
        return value if isinstance(value, bool) else _WORDS.get(value.lower()) if isinstance(value, str) else None
    number = _read_number(value)
    if number is None:
        return None
    if kind.is_integer:
        smallest, largest = INTEGER_RANGE[kind]
        return int(number) if smallest <= number <= largest and number == int(number) else None
    if isinstance(number, float) and not math.isfinite(number):
        return number
    largest_float = _FLOAT_MAX if kind is Scalar.FLOAT else _DOUBLE_MAX
    if abs(number) > largest_float:
        return None
    return float(np.float32(number)) if kind is Scalar.FLOAT else float(number)


_WORDS: Final = {**dict.fromkeys(("true", "t", "yes", "y", "1"), True), **dict.fromkeys(("false", "f", "no", "n", "0"), False)}
"""Strings that protobuf takes for a bool, in any case."""
_ENUM_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""Half a pair, by an escape: it cannot be written as UTF-8."""
_FLOAT_MAX: Final = float(np.finfo(np.float32).max)
_DOUBLE_MAX: Final = float(np.finfo(np.float64).max)
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?|NaN|-?Infinity")
"""A number inside a string, bounded so that reading it is cheap."""


def _read_number(value: JsonValue) -> int | float | None:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        digits = value.removeprefix("-")
        return int(value) if digits.isdigit() else float(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _shown(value: JsonValue) -> str:
    """The value as a message prints it, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "..."


_SHOWN_CHARACTERS_MAX: Final = 120


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
