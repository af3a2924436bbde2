"""The `parameters` of a request: those with a meaning to the server, and the caller's own; and its output plan: decided while
the request is read, used when its response is encoded."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported
from tpy.frontends.http.codec.document import (
    INT64_MAX,
    INT64_MIN,
    NON_BOOLEAN,
    NON_STRING,
    NON_UNSIGNED,
    is_unsigned,
    refuse_type,
)
from tpy.frontends.http.codec.pieces import LongString
from tpy.frontends.shared_memory import RegionRange
from tpy.limits import SEQUENCE_ID_CHARACTERS_MAX
from tpy.messages import ParameterValue, SequencePosition


class OutputChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The form that the caller asked of one output: as a blob or as JSON, as a tensor or (`classification` > 0) as its best
    classes. With `region` it is written there, and the answer has only its name, datatype and shape."""

    binary: bool = False
    classification: int = 0
    region: RegionRange | None = None


class HttpOutputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Per output name what was asked of it; outputs that are not named follow `default` (all of them, when none was named)."""

    choices: dict[str, OutputChoice] = msgspec.field(default_factory=dict)
    default: OutputChoice = OutputChoice()

    def choice(self, name: str) -> OutputChoice:
        """The choice for the output `name`."""
        return self.choices.get(name, self.default)


JSON = OutputChoice()
BINARY = OutputChoice(binary=True)
JSON_PLAN = HttpOutputPlan(default=JSON)
BINARY_PLAN = HttpOutputPlan(default=BINARY)


class HttpRequestParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one request, sorted by who reads them. `own` go to the model."""

    sequence: SequencePosition | None = None
    priority: int = 0
    timeout_us: int = 0
    binary_output: bool = False
    own: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)


NONE = HttpRequestParameters()


def read_parameters(value: object) -> HttpRequestParameters:
    """The parameters in the JSON value `value`. Raises InvalidArgument (one for each wrong type),
    Unsupported for a sequence id that is too long."""
    if type(value) is not dict:
        raise InvalidArgument("failed to get request params.: attempt to get members for non-object")
    known: dict[str, object] = {}
    own: dict[str, ParameterValue] = {}
    for key, member in value.items():
        if key in _CHECKS:
            problem = _CHECKS[key](member)
            if problem:
                refuse_type(key, problem, member)
            known[key] = member
        elif key.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            own[key] = own_value(key, member)
    return _sorted(known, own)


def own_value(key: str, value: object) -> ParameterValue:
    """A parameter for the model. Raises InvalidArgument for a list, an object or null."""
    if isinstance(value, str | bool | float):
        return value
    if type(value) is LongString:
        return value.decode()
    if isinstance(value, int):
        return value if INT64_MIN <= value <= INT64_MAX else float(value)
    raise InvalidArgument(f"parameter '{echo(key)}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _sorted(known: Mapping[str, object], own: Mapping[str, ParameterValue]) -> HttpRequestParameters:
    sequence = None
    correlation_id = known.get("sequence_id")
    if isinstance(correlation_id, int | str) and correlation_id:
        if isinstance(correlation_id, str) and len(correlation_id) > SEQUENCE_ID_CHARACTERS_MAX:
            raise Unsupported(f"string correlation ID cannot be longer than {SEQUENCE_ID_CHARACTERS_MAX} characters")
        sequence = SequencePosition(
            correlation_id=correlation_id,
            start=known.get("sequence_start") is True,
            end=known.get("sequence_end") is True,
        )
    priority, timeout_us = known.get("priority"), known.get("timeout")
    return HttpRequestParameters(
        sequence=sequence,
        priority=priority if isinstance(priority, int) else 0,
        timeout_us=timeout_us if isinstance(timeout_us, int) else 0,
        binary_output=known.get("binary_data_output") is True,
        own=own,
    )


def _boolean_problem(value: object) -> str:
    return "" if type(value) is bool else NON_BOOLEAN


def _unsigned_problem(value: object) -> str:
    return "" if is_unsigned(value) else NON_UNSIGNED


def _sequence_id_problem(value: object) -> str:
    return "" if is_unsigned(value) or type(value) is str else NON_STRING


_CHECKS = {
    "sequence_id": _sequence_id_problem,
    "sequence_start": _boolean_problem,
    "sequence_end": _boolean_problem,
    "priority": _unsigned_problem,
    "timeout": _unsigned_problem,
    "binary_data_output": _boolean_problem,
}
"""Parameters with a meaning: what is wrong with a value, "" for nothing."""
