"""Write a repository with a pipeline of DALI, a network that tells colours apart, and the ensemble of the two; and pictures.

Use: python docs/examples/dali/build.py DIRECTORY
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

COLOURS = {"red": (250, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 250)}
SIZES = {"red": (640, 480), "green": (100, 300), "blue": (33, 35)}

NETWORK = """\
output [ { name: "COLOUR" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
"""
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 4
input [ { name: "PICTURE" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "COLOUR" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
ensemble_scheduling {
  step [
    {
      model_name: "preprocess"
      model_version: -1
      input_map { key: "ENCODED" value: "PICTURE" }
      output_map { key: "IMAGE" value: "image" }
    },
    {
      model_name: "network"
      model_version: -1
      input_map { key: "IMAGE" value: "image" }
      output_map { key: "COLOUR" value: "COLOUR" }
    }
  ]
}
"""


def save_network(path: Path) -> None:
    """The mean of each colour, as probabilities."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["IMAGE"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["COLOUR"], axis=1),
    ]
    tensors = [
        helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["batch", 3, 32, 32]),
        helper.make_tensor_value_info("COLOUR", TensorProto.FLOAT, ["batch", 3]),
    ]
    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32) * 4, "weights")
    graph = helper.make_graph(nodes, "colours", tensors[:1], tensors[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def main(directory: Path) -> None:
    models = directory / "models"
    for name in ("preprocess", "network", "colours"):
        (models / name / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("pipeline.py"), models / "preprocess" / "1" / "dali.py")
    (models / "preprocess" / "config.pbtxt").write_text('backend: "dali"\n')
    save_network(models / "network" / "1" / "model.onnx")
    (models / "colours" / "config.pbtxt").write_text(ENSEMBLE)
    (models / "network" / "config.pbtxt").write_text(NETWORK)
    for model in ("network", "colours"):
        (models / model / "labels.txt").write_text("\n".join(COLOURS) + "\n")
    for name, colour in COLOURS.items():
        Image.new("RGB", SIZES[name], colour).save(directory / f"{name}.jpg")
    print("wrote", directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
