"""`python models.py FOLDER`, in the environment with MLflow: saves a model of each kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlflow.onnx
import mlflow.pyfunc
import mlflow.sklearn
import numpy as np
import onnx
import pandas as pd
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
from onnx import TensorProto, helper
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

folder = Path(sys.argv[1])
chance = np.random.default_rng(7)
rows = chance.normal(size=(120, 4))


class Table(mlflow.pyfunc.PythonModel):
    """Columns of all types to columns of some."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return pd.DataFrame(
            {
                "label": model_input["name"].str.upper() + "/" + model_input["count"].astype(str),
                "next": model_input["since"] + pd.Timedelta(days=1),
                "size": [len(content) for content in model_input["photo"]],
                "heavy": model_input["weight"].fillna(0.5) * 2 if "weight" in model_input else -1.0,
            }
        )


class Scaled(mlflow.pyfunc.PythonModel):
    """A tensor times a parameter."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input * np.float32(params["scale"])


class Pair(mlflow.pyfunc.PythonModel):
    """Two tensors by name to two."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return {"total": model_input["a"] + model_input["b"], "product": model_input["a"] * model_input["b"]}


class Lengths(mlflow.pyfunc.PythonModel):
    """A column of texts to an array."""

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return model_input["text"].str.len().to_numpy(np.int64)


def tensor(name: str | None, kind: str, *shape: int) -> TensorSpec:
    return TensorSpec(np.dtype(kind), shape, name)


frame = pd.DataFrame(rows, columns=["a", "b", "c", "d"])
classes = (rows[:, 0] + rows[:, 2] > 0).astype(np.int64)
pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, classes)
mlflow.sklearn.save_model(
    pipeline, folder / "classes", signature=infer_signature(frame, pipeline.predict(frame)), serialization_format="pickle"
)
forest = RandomForestRegressor(20, max_depth=5, random_state=7).fit(rows, rows @ [1.0, 2.0, -1.0, 0.5])
mlflow.sklearn.save_model(
    forest, folder / "forest", signature=infer_signature(rows, forest.predict(rows)), serialization_format="pickle"
)

x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(network)
single = Schema([tensor(None, "float32", -1, 3)])
mlflow.onnx.save_model(network, folder / "double", signature=ModelSignature(single, Schema([tensor("y", "float32", -1, 3)])))

table = ModelSignature(
    Schema(
        [
            ColSpec(DataType.string, "name"),
            ColSpec(DataType.long, "count"),
            ColSpec(DataType.datetime, "since"),
            ColSpec(DataType.binary, "photo"),
            ColSpec(DataType.double, "weight", required=False),
        ]
    ),
    Schema(
        [
            ColSpec(DataType.string, "label"),
            ColSpec(DataType.datetime, "next"),
            ColSpec(DataType.long, "size"),
            ColSpec(DataType.double, "heavy"),
        ]
    ),
)
mlflow.pyfunc.save_model(folder / "table", python_model=Table(), signature=table)
scale = ParamSchema([ParamSpec("scale", DataType.double, 2.0)])
mlflow.pyfunc.save_model(
    folder / "scaled", python_model=Scaled(), signature=ModelSignature(single, Schema([tensor(None, "float32", -1, 3)]), scale)
)
pair = ModelSignature(
    Schema([tensor("a", "float64", -1), tensor("b", "float64", -1)]),
    Schema([tensor("total", "float64", -1), tensor("product", "float64", -1)]),
)
mlflow.pyfunc.save_model(folder / "pair", python_model=Pair(), signature=pair)
lengths = ModelSignature(Schema([ColSpec(DataType.string, "text")]), Schema([tensor(None, "int64", -1)]))
mlflow.pyfunc.save_model(folder / "lengths", python_model=Lengths(), signature=lengths)
