"""The `parameters` of a request: those with a meaning to the server, and the caller's own; and its output plan: decided while
the request is read, used when its response is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported
from tpy.frontends.shared_memory import RegionRange
from tpy.limits import SEQUENCE_ID_CHARACTERS_MAX
from tpy.messages import ParameterValue, SequencePosition


class GrpcOutputPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`requested`: the outputs that were asked for by name. `class_counts`: the ones wanted as their best classes, and how many.
    `regions`: the ones written to regions, which are not part of the message. `empty_final`: whether a separate message marks the
    end of a decoupled request (`triton_enable_empty_final_response`)."""

    requested: tuple[str, ...] = ()
    class_counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    regions: Mapping[str, RegionRange] = msgspec.field(default_factory=dict)
    empty_final: bool = False


NO_PLAN = GrpcOutputPlan()


_UINT64_MASK = 2**64 - 1
_RESERVED = "triton_"
_EMPTY_FINAL = "triton_enable_empty_final_response"
_OWN_KINDS = frozenset({"int64_param", "bool_param", "string_param", "double_param"})

_KNOWN_KINDS: dict[str, tuple[str, ...]] = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    _EMPTY_FINAL: ("bool_param",),
}
"""Parameters with a meaning, and the fields of InferParameter that their value may be in."""


class GrpcRequestParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one request, sorted by who reads them. `own` go to the model."""

    sequence: SequencePosition | None = None
    priority: int = 0
    timeout_us: int = 0
    empty_final: bool = False
    own: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)


NONE = GrpcRequestParameters()


def read_parameters(parameters: Mapping[str, Any]) -> GrpcRequestParameters:
    """`parameters` holds inference.InferParameter messages. Raises InvalidArgument (one for each wrong type),
    Unsupported for a sequence id that is too long."""
    known: dict[str, Any] = {}
    own: dict[str, ParameterValue] = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if key in _KNOWN_KINDS:
            if kind not in _KNOWN_KINDS[key]:
                raise InvalidArgument(f"invalid value type for '{key}' parameter, expected {' or '.join(_KNOWN_KINDS[key])}.")
            known[key] = getattr(parameter, kind)
        elif key.startswith(_RESERVED):
            raise InvalidArgument(
                f"parameter keys starting with '{_RESERVED}' are reserved for Triton usage. Only the following keys starting "
                f"with '{_RESERVED}' are allowed: {_EMPTY_FINAL}"
            )
        elif kind in _OWN_KINDS:
            own[key] = getattr(parameter, kind)
        else:
            raise InvalidArgument(
                f"invalid value type for '{echo(key)}' parameter, expected int64_param, bool_param, or string_param."
            )
    return _sorted(known, own)


def _sorted(known: Mapping[str, Any], own: Mapping[str, ParameterValue]) -> GrpcRequestParameters:
    sequence = None
    correlation_id = known.get("sequence_id", 0)
    if correlation_id:
        if isinstance(correlation_id, str):
            if len(correlation_id) > SEQUENCE_ID_CHARACTERS_MAX:
                raise Unsupported(f"string correlation ID cannot be longer than {SEQUENCE_ID_CHARACTERS_MAX} characters")
        else:
            correlation_id &= _UINT64_MASK  # an unsigned number in a signed field
        sequence = SequencePosition(
            correlation_id=correlation_id, start=known.get("sequence_start", False), end=known.get("sequence_end", False)
        )
    priority = known.get("priority", 0)
    if priority < 0:
        raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
    return GrpcRequestParameters(
        sequence=sequence,
        priority=priority,
        timeout_us=max(0, known.get("timeout", 0)),  # to Triton a negative one is a very large one: none
        empty_final=known.get(_EMPTY_FINAL, False),
        own=own,
    )
