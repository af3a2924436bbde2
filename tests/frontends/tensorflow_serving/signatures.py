"""Signatures for tests."""

from __future__ import annotations

from tpy.messages import DataType
from tpy_platforms.tensorflow_serving.models import Argument, ServingSignature


def arguments(**kinds: DataType) -> dict[str, Argument]:
    """Tensors of any number of rows and columns, by name."""
    return {name: Argument(name=name, datatype=kind, shape=(-1, -1), is_scalar=False) for name, kind in kinds.items()}


def signature(inputs: dict[str, Argument], outputs: dict[str, Argument] | None = None) -> ServingSignature:
    """The signature `serving_default` of a model `m`."""
    return ServingSignature(model="m", name="serving_default", inputs=inputs, outputs=outputs or {})
