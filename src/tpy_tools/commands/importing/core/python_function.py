"""A Python model around mlflow.pyfunc."""

from __future__ import annotations

from tpy_tools.commands.importing.core.signature import MlflowSignature, names_of

_MODEL_PY = '''"""Calls predict of the MLflow model in the folder mlflow_model beside this file, a request at a time."""

import json
from pathlib import Path

import mlflow.pyfunc
import numpy as np{pandas}
import triton_python_backend_utils as pb_utils

{tables}


class TritonPythonModel:
    def initialize(self, args):
        self.model = mlflow.pyfunc.load_model(str(Path(__file__).with_name("mlflow_model")))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {{}}
        for name, column, kind, dims in INPUTS:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                given[column] = as_given(tensor.as_numpy(), kind, dims)
        sent = json.loads(request.parameters() or "{{}}")
        params = {{name: sent[name] for name in PARAMS if name in sent}}
        result = self.model.predict({data}, **({{"params": params}} if params else {{}}))
        return pb_utils.InferenceResponse([as_output(result, *output) for output in OUTPUTS])


def as_given(array, kind, dims):
    """The values as MLflow's type has them, in its shape."""
    array = array if dims is None else array.reshape(dims)
    if array.dtype == object and kind != "binary" and not kind.startswith("|S"):
        array = np.array([value.decode() for value in array.ravel()], object).reshape(array.shape)
    return {value}


def as_output(result, name, column, dtype, dims):
    """An output of the answer: the column of that name, or all of it."""
    part = result[column] if column is not None else result
    array = np.asarray(part)
    if dtype == "object":
        texts = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel()]
        array = np.array(texts, object).reshape(array.shape)
    return pb_utils.Tensor(name, array.astype(dtype).reshape(array.shape if dims is None else dims))
'''


def model_py(signature: MlflowSignature) -> str:
    """The text of model.py for a signature."""
    given = names_of(signature.inputs, "input")
    inputs = [
        (name, field.name or at, field.kind, (-1,) if field.dims is not None and len(field.dims) == 1 else None)
        for at, (name, field) in enumerate(zip(given, signature.inputs, strict=True))
    ]
    several = len(signature.outputs) > 1
    outputs = [
        (
            name,
            (field.name or at) if several else None,
            "object" if field.datatype.numpy.kind == "O" else str(field.datatype.numpy),
            _shape(field.dims, rows=signature.has_rows),
        )
        for at, (name, field) in enumerate(zip(names_of(signature.outputs, "output"), signature.outputs, strict=True))
    ]
    tables = [
        ("INPUTS", inputs, "Name of the tensor, column or key of MLflow, its type, shape (None: the tensor's)."),
        (
            "OUTPUTS",
            outputs,
            "Name of the tensor, column or key of MLflow (None: the whole result), type, shape (None: its own).",
        ),
        ("PARAMS", list(signature.parameters), "Parameters of a request that go to predict."),
    ]
    text = "\n\n".join(f'{name} = {_literal(rows)}\n"""{about}"""' for name, rows, about in tables)
    unnamed = len(signature.inputs) == 1 and not signature.inputs[0].name
    whole = "next(iter(given.values()))" if unnamed else "given"
    data = "pd.DataFrame(given)" if signature.in_columns else whole
    value = 'pd.to_datetime(array.ravel()) if kind == "datetime" else array.ravel()' if signature.in_columns else "array"
    pandas = "\nimport pandas as pd" if signature.in_columns else ""
    return _MODEL_PY.format(tables=text, data=data, value=value, pandas=pandas)


def _shape(dims: tuple[int, ...] | None, *, rows: bool) -> tuple[int, ...] | None:
    """The shape to give a result; None: its own, as several sizes are open."""
    shape = (-1, 1) if dims is None else (-1, *(dims[1:] or (1,))) if rows else dims
    return shape if shape.count(-1) <= 1 else None


def _literal(rows: object) -> str:
    """The rows as Python, whatever the texts in them are."""
    assert isinstance(rows, list)
    return "[" + ", ".join(ascii(row) for row in rows) + "]" if rows else "[]"
