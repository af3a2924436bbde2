"""Writes a folder as MLflow saves an ONNX model: x FP32[N,2] -> y, twice as much. MLflow itself is not needed."""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

MLMODEL = """\
flavors:
  onnx:
    code: null
    data: model.onnx
    onnx_version: 1.17.0
    providers: [CUDAExecutionProvider, CPUExecutionProvider]
  python_function:
    data: model.onnx
    loader_module: mlflow.onnx
    python_version: 3.11.7
mlflow_version: 3.17.2
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]'
  params: null
"""

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
(folder / "MLmodel").write_text(MLMODEL)
(folder / "requirements.txt").write_text("mlflow==3.17.2\nonnx==1.17.0\nonnxruntime==1.20.0\n")
print(f"{folder}/MLmodel: flavors onnx, python_function")
