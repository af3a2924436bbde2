"""The inputs of a request to an engine, one at a time."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.messages import Tensor

Inputs = Mapping[str, Tensor]


def bytes_in(inputs: Inputs, name: str) -> bytes:
    """The first element of the input; b"" without one."""
    tensor = inputs.get(name)
    return bytes(tensor.array.reshape(-1)[0]) if tensor is not None and tensor.array.size else b""


def flag_in(inputs: Inputs, name: str, *, default: bool = False) -> bool:
    """The first element of the input; the default without one."""
    tensor = inputs.get(name)
    return bool(tensor.array.reshape(-1)[0]) if tensor is not None and tensor.array.size else default
