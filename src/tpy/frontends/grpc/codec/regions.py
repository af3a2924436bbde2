"""The parameters of a tensor that is in a shared memory region."""

from __future__ import annotations

from typing import Any

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.shared_memory import RegionRange, TensorResolver

_REGION, _OFFSET, _SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


def region_of(parameters: Any, tensor: str, tensors: TensorResolver) -> RegionRange | None:
    """Returns the range that `shared_memory_region` and its fellows name, None without them. Raises InvalidArgument for a wrong
    type and for one without the other, and as TensorResolver."""
    name = _value(parameters, _REGION, "string_param", tensor)
    offset = _value(parameters, _OFFSET, "int64_param", tensor)
    size = _value(parameters, _SIZE, "int64_param", tensor)
    if name is None:
        return None
    if size is None:
        raise InvalidArgument(f"'{_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{echo(tensor)}'")
    return tensors.resolve(name, offset or 0, size)


def _value(parameters: Any, key: str, kind: str, tensor: str) -> Any:
    if key not in parameters:
        return None
    if key is not _REGION and _REGION not in parameters:
        raise InvalidArgument(f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{echo(tensor)}'")
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for '{key}' parameter for tensor '{echo(tensor)}', expected {kind}.")
    return getattr(parameter, kind)
