"""The parameter in which `tpy import` notes an MLflow model's signature, and the flavour that is served.

Types and names of the signature are MLflow's. Clients send columns by these names, whatever the names of the tensors are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from tpy.errors import Internal
from tpy.limits import MLFLOW_SIGNATURES_KEPT_MAX

PARAMETER: Final = "MLFLOW_MODEL"


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A column, or with a `shape` a tensor. `name` is "" where the signature says none."""

    name: str = ""
    type: str
    shape: tuple[int, ...] | None = None
    required: bool = True


class MlflowModel(msgspec.Struct, frozen=True, kw_only=True):
    """`flavor` decides on the form of predictions. `output` is the one that is asked for, "" for all."""

    flavor: str = ""
    inputs: tuple[Field, ...] = ()
    outputs: tuple[Field, ...] = ()
    output: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns in their order; () for tensors, and for columns without names."""
        names = tuple(field.name for field in self.inputs if field.shape is None and field.name)
        return names if len(names) == len(self.inputs) else ()

    def kind_of(self, name: str) -> str:
        """The type of an input, "" where the signature does not say it."""
        for field in self.inputs:
            if field.name == name or (len(self.inputs) == 1 and not field.name):
                return field.type
        return ""


UNKNOWN: Final = MlflowModel()
"""Of a model that was not imported from MLflow."""

_decode = msgspec.json.Decoder(MlflowModel).decode


@lru_cache(MLFLOW_SIGNATURES_KEPT_MAX)
def read_model(text: str) -> MlflowModel:
    """The value of the parameter; UNKNOWN for "". Raises Internal."""
    if not text:
        return UNKNOWN
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise Internal(f"parameter {PARAMETER} of the model's configuration: {error}; tpy import writes it") from None
