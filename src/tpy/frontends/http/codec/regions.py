"""The parameters of a tensor that is in a shared memory region."""

from __future__ import annotations

from tpy.frontends.http.codec.document import NON_STRING, NON_UNSIGNED, is_unsigned, refuse_type
from tpy.frontends.http.codec.pieces import LongString
from tpy.frontends.shared_memory import RegionRange, TensorResolver


def region_of(parameters: dict[str, object], tensors: TensorResolver) -> RegionRange:
    """Returns the range that `shared_memory_region` and its fellows name. Raises InvalidArgument for a wrong type, and as
    TensorResolver."""
    name = parameters["shared_memory_region"]
    if type(name) is LongString:
        name = name.decode()
    if type(name) is not str:
        refuse_type("shared_memory_region", NON_STRING, name)
    return tensors.resolve(name, _unsigned(parameters, "shared_memory_offset"), _unsigned(parameters, "shared_memory_byte_size"))


def _unsigned(parameters: dict[str, object], member: str) -> int:
    value = parameters.get(member, 0)
    if type(value) is not int or not is_unsigned(value):
        refuse_type(member, NON_UNSIGNED, value)
    return value
