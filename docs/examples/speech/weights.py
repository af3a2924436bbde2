"""Silero VAD (MIT license) with every tensor batch-first, as implicit state wants it.

The graph as its package ships it takes `state` as [2,N,128], the sampling rate, and 576 samples: the last 64 of the chunk before,
and 512 new ones. Here the state is [N,2,128], and the 64 samples are a second state that the graph keeps by itself. No weight is
changed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from packages import package_file

CHUNK = 512
CONTEXT = 64
SAMPLES_PER_S = 16_000


def batch_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """INPUT[N,512], STATE[N,2,128], CONTEXT[N,64] -> PROBABILITY[N,1], STATE_OUT[N,2,128], CONTEXT_OUT[N,64], all FP32."""
    graph = model.graph
    before = [
        helper.make_node("Concat", ["CONTEXT", "INPUT"], ["input"], axis=1),
        helper.make_node("Transpose", ["STATE"], ["state"], perm=[1, 0, 2]),
    ]
    after = [
        helper.make_node("Identity", ["output"], ["PROBABILITY"]),
        helper.make_node("Transpose", ["stateN"], ["STATE_OUT"], perm=[1, 0, 2]),
        helper.make_node("Slice", ["INPUT", "tail_start", "tail_end", "tail_axis"], ["CONTEXT_OUT"]),
    ]
    constants = {"sr": SAMPLES_PER_S, "tail_start": [CHUNK - CONTEXT], "tail_end": [CHUNK], "tail_axis": [1]}
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.input[:], graph.output[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items())
    graph.input.extend(_tensors(INPUT=[CHUNK], STATE=[2, 128], CONTEXT=[CONTEXT]))
    graph.output.extend(_tensors(PROBABILITY=[1], STATE_OUT=[2, 128], CONTEXT_OUT=[CONTEXT]))
    onnx.checker.check_model(model)
    return model


def _tensors(**dims: list[int]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape]) for name, shape in dims.items()]


def write(repository: Path) -> None:
    """Both models serve the same graph."""
    model = batch_first(onnx.load(package_file("silero_vad", "data", "silero_vad_16k_op15.onnx")))
    for name in ("vad", "vad_direct"):
        onnx.save(model, repository / name / "1" / "model.onnx")
