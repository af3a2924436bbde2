"""Signatures of MLflow models as inputs and outputs of a configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tpy.config.model_config import ModelInput, ModelOutput
from tpy.messages import DataType
from tpy.messages.datatypes import from_numpy
from tpy_tools.commands.importing.core.plan import Unimportable

_COLUMN_TYPES: Final[Mapping[str, DataType]] = {
    "boolean": DataType.BOOL,
    "integer": DataType.INT32,
    "long": DataType.INT64,
    "float": DataType.FP32,
    "double": DataType.FP64,
    "string": DataType.BYTES,
    "binary": DataType.BYTES,
    "datetime": DataType.BYTES,
}


class MlflowField(msgspec.Struct, frozen=True, kw_only=True):
    """A column or a tensor. `kind` is the type that MLflow names; `dims` None: a column, one value in a row. `name` is "" where
    the signature says none."""

    name: str
    kind: str
    datatype: DataType
    dims: tuple[int, ...] | None = None
    required: bool = True


class MlflowSignature(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` are the names of what MLflow calls params, with their defaults."""

    inputs: tuple[MlflowField, ...]
    outputs: tuple[MlflowField, ...]
    parameters: Mapping[str, Any]

    @property
    def has_rows(self) -> bool:
        """True if the first size of every input and output is that of the batch."""
        return all(field.dims is None or field.dims[:1] == (-1,) for field in (*self.inputs, *self.outputs))

    @property
    def in_columns(self) -> bool:
        """True if the model takes a data frame."""
        return all(field.dims is None for field in self.inputs)


def read_signature(document: object) -> MlflowSignature:
    """The `signature` of an MLmodel. Raises Unimportable where it says too little to serve the model."""
    if not isinstance(document, Mapping):
        raise Unimportable("MLmodel has no signature, so its inputs are unknown; log the model with a signature")
    return MlflowSignature(
        inputs=_fields(document, "inputs"),
        outputs=_fields(document, "outputs"),
        parameters={str(each.get("name")): each.get("default") for each in _entries(document, "params")},
    )


def _entries(document: Mapping[str, Any], side: str) -> list[Mapping[str, Any]]:
    text = document.get(side)
    if text is None:
        return []
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise Unimportable(f"MLmodel: signature.{side} is not a JSON list of columns or tensors")
    return found


def _fields(document: Mapping[str, Any], side: str) -> tuple[MlflowField, ...]:
    entries = _entries(document, side)
    if not entries:
        raise Unimportable(f"MLmodel: signature.{side} is missing; log the model with a signature that has it")
    fields = tuple(_field(each, f"signature.{side}") for each in entries)
    names = [field.name for field in fields]
    if len(fields) > 1 and (len(set(names)) < len(names)) and any(names):
        raise Unimportable(f"MLmodel: signature.{side}: two have the same name")
    if len({field.dims is None for field in fields}) > 1:
        raise Unimportable(f"MLmodel: signature.{side}: columns and tensors together")
    return fields


def _field(entry: Mapping[str, Any], where: str) -> MlflowField:
    name, kind = str(entry.get("name") or ""), entry.get("type")
    required = bool(entry.get("required", True)) and not entry.get("optional", False)
    if kind == "tensor":
        spec = entry.get("tensor-spec")
        if not isinstance(spec, dict):
            raise Unimportable(f"MLmodel: {where}: '{name}' has no tensor-spec")
        dims = spec.get("shape")
        if not isinstance(dims, list) or not all(type(size) is int and size >= -1 for size in dims):
            raise Unimportable(f"MLmodel: {where}: the shape of '{name}' is not a list of sizes")
        word = str(spec.get("dtype"))
        return MlflowField(name=name, kind=word, datatype=_tensor_type(word, where), dims=tuple(dims), required=required)
    if not isinstance(kind, str) or kind not in _COLUMN_TYPES:
        known = ", ".join(_COLUMN_TYPES)
        raise Unimportable(f"MLmodel: {where}: '{name}' has the type '{kind}', which no tensor has; expected {known}")
    return MlflowField(name=name, kind=kind, datatype=_COLUMN_TYPES[kind], required=required)


def _tensor_type(word: str, where: str) -> DataType:
    try:
        found = from_numpy(np.dtype(word))
    except TypeError:
        found = DataType.INVALID
    if found is DataType.INVALID:
        raise Unimportable(f"MLmodel: {where}: unknown dtype '{word}'")
    return found


def names_of(fields: Sequence[MlflowField], unnamed: str) -> list[str]:
    """The names of tensors: `unnamed`, with a number where there are several, for fields without."""
    single = len(fields) == 1
    return [field.name or (unnamed if single else f"{unnamed}_{at}") for at, field in enumerate(fields)]


def inputs_of(signature: MlflowSignature) -> tuple[ModelInput, ...]:
    """The inputs of the configuration."""
    names = names_of(signature.inputs, "input")
    return tuple(
        ModelInput(name=name, data_type=field.datatype, dims=_dims(field, rows=signature.has_rows), optional=not field.required)
        for name, field in zip(names, signature.inputs, strict=True)
    )


def outputs_of(signature: MlflowSignature) -> tuple[ModelOutput, ...]:
    """The outputs of the configuration."""
    names = names_of(signature.outputs, "output")
    return tuple(
        ModelOutput(name=name, data_type=field.datatype, dims=_dims(field, rows=signature.has_rows))
        for name, field in zip(names, signature.outputs, strict=True)
    )


def _dims(field: MlflowField, *, rows: bool) -> tuple[int, ...]:
    """The sizes of a row, or of a whole request where the model has no rows. A row of one number has the size 1."""
    if field.dims is None:
        return (1,) if rows else (-1, 1)
    return (field.dims[1:] or (1,)) if rows else field.dims
