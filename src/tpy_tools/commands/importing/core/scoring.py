"""The parameter of a configuration that tells the MLflow port about a model (`tpy_platforms.mlflow.core.signature`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from tpy.config.model_config import ModelParameter
from tpy_platforms.mlflow.core.signature import PARAMETER
from tpy_tools.commands.importing.core.plan import Unimportable
from tpy_tools.commands.importing.core.signature import MlflowField, read_signature


def as_parameter(flavour: str, signature: object, output: str) -> Mapping[str, ModelParameter]:
    """The parameter: the flavour, the output that is asked for ("" for all), and the signature if it can be read."""
    document: dict[str, Any] = {"flavor": flavour}
    if output:
        document["output"] = output
    try:
        found = read_signature(signature)
    except Unimportable:  # a native backend needs none
        found = None
    if found is not None:
        document |= {"inputs": [_row(each) for each in found.inputs], "outputs": [_row(each) for each in found.outputs]}
    return {PARAMETER: ModelParameter(string_value=orjson.dumps(document).decode())}


def _row(field: MlflowField) -> dict[str, Any]:
    row: dict[str, Any] = {"name": field.name} if field.name else {}
    row["type"] = field.kind
    if field.dims is not None:
        row["shape"] = field.dims
    return row if field.required else {**row, "required": False}
