"""The models that Triton's client examples ask for: names, shapes and semantics of those in its public repositories.

The networks behind densenet_onnx and inception_onnx are light ones of the same inputs and outputs; their classes follow the
brightness of the image.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import onnx.helper
import onnx.parser

EXAMPLES = "examples"
"""The folder of the eight models that Triton's example repository has; its clients count them."""

SEVEN = "seven"
"""The folder of all of them but one."""

MORE = "more"
"""The folder of the others."""

_ADD_SUB = """
<ir_version: 10, opset_import: ["" : 21]>
add_sub ({io}[N,16] INPUT0, {io}[N,16] INPUT1) => ({io}[N,16] OUTPUT0, {io}[N,16] OUTPUT1) {{
  left = Cast <to = 6> (INPUT0)
  right = Cast <to = 6> (INPUT1)
  sum = Add (left, right)
  difference = Sub (left, right)
  OUTPUT0 = Cast <to = {number}> (sum)
  OUTPUT1 = Cast <to = {number}> (difference)
}}
"""

_SEQUENCE = """
<ir_version: 10, opset_import: ["" : 21]>
sequence (int32[N,1] INPUT, int32[N,1] START, int32[N,1] READY) => (int32[N,1] OUTPUT) {
  counted = Add (INPUT, START)
  OUTPUT = Mul (READY, counted)
}
"""

_DYNA_SEQUENCE = """
<ir_version: 10, opset_import: ["" : 21]>
dyna_sequence (int32[N,1] INPUT, int32[N,1] START, int32[N,1] END, int32[N,1] READY, uint64[N,1] CORRID) => (int32[N,1] OUTPUT) {
  id = Cast <to = 6> (CORRID)
  counted = Add (INPUT, START)
  ended = Mul (END, id)
  sum = Add (counted, ended)
  OUTPUT = Mul (READY, sum)
}
"""

_STRING_DYNA_SEQUENCE = """
<ir_version: 10, opset_import: ["" : 21]>
string_dyna_sequence (int32[N,1] INPUT, int32[N,1] START, int32[N,1] END, int32[N,1] READY, string[N,1] CORRID, int32[N,1] SUM)
  => (int32[N,1] OUTPUT, int32[N,1] SUM_OUT) {
  id = Cast <to = 6> (CORRID)
  one = Constant <value = int32 {1}> ()
  goes_on = Sub (one, START)
  kept = Mul (goes_on, SUM)
  SUM_OUT = Add (INPUT, kept)
  ended = Mul (END, id)
  sum = Add (SUM_OUT, ended)
  OUTPUT = Mul (READY, sum)
}
"""

_SUM = 'state [ { input_name: "SUM" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]'

_AFFINE = """
<ir_version: 10, opset_import: ["" : 21]>
affine (float[N,16] INPUT0) => (float[N,16] OUTPUT0) {
  OUTPUT0 = Add (INPUT0, INPUT0)
}
"""

_IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in given]
"""

_REPEAT = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            values, delays, wait = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "DELAY", "WAIT")
            )
            sender = request.get_response_sender()
            for index, (value, delay_ms) in enumerate(zip(values, delays)):
                time.sleep(delay_ms / 1000 / 20)
                outputs = [
                    pb_utils.Tensor("OUT", value.reshape(1)),
                    pb_utils.Tensor("IDX", index * value.reshape(1).astype("uint32")),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_PREPROCESS = """
import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            files = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().reshape(-1)
            images = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB").resize((299, 299))) for file in files]
            scaled = np.stack(images).astype(np.float32) / 127.5 - 1
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", scaled)]))
        return responses
"""

_CONTROLS = {
    "START": "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]",
    "END": "kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ]",
    "READY": "kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ]",
    "CORRID": "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{}",
}


def write_models(folder: Path) -> None:
    """Write the repositories, `EXAMPLES`, `SEVEN` and `MORE`."""
    _write_examples(folder / EXAMPLES)
    _write_examples(folder / SEVEN)
    shutil.rmtree(folder / SEVEN / "densenet_onnx")
    _write_more(folder / MORE)


def _write_examples(root: Path) -> None:
    for name, io, number, kind in (
        ("simple", "int32", 6, "INT32"),
        ("simple_int8", "int8", 3, "INT8"),
        ("simple_string", "string", 8, "STRING"),
    ):
        tensors = _io([(f"INPUT{i}", kind, "16") for i in (0, 1)], [(f"OUTPUT{i}", kind, "16") for i in (0, 1)])
        _onnx(root / name, _ADD_SUB.format(io=io, number=number), "max_batch_size: 8", tensors)
    _python(
        root / "simple_identity", _IDENTITY, "max_batch_size: 8", _io([("INPUT0", "STRING", "-1")], [("OUTPUT0", "STRING", "-1")])
    )
    _onnx(root / "simple_sequence", _SEQUENCE, "max_batch_size: 8", _sequence("direct {}", "START", "READY"), _CPU)
    _onnx(root / "simple_dyna_sequence", _DYNA_SEQUENCE, "max_batch_size: 8", _dyna("UINT64"), _CPU)
    _densenet(root / "densenet_onnx")
    _inception(root / "inception_onnx")


def _write_more(root: Path) -> None:
    _python(
        root / "repeat_int32",
        _REPEAT,
        "max_batch_size: 0 model_transaction_policy { decoupled: true }",
        _io(
            [("IN", "INT32", "-1"), ("DELAY", "UINT32", "-1"), ("WAIT", "UINT32", "1")],
            [("OUT", "INT32", "1"), ("IDX", "UINT32", "1")],
        ),
    )
    _python(
        root / "custom_identity_int32",
        _IDENTITY,
        "max_batch_size: 1024",
        _io([("INPUT0", "INT32", "-1")], [("OUTPUT0", "INT32", "-1")]),
    )
    _onnx(root / "simple_string_dyna_sequence", _STRING_DYNA_SEQUENCE, "max_batch_size: 8", _dyna("STRING", _SUM), _CPU)
    _onnx(root / "affine", _AFFINE, "max_batch_size: 8", _io([("INPUT0", "FP32", "16")], [("OUTPUT0", "FP32", "16")]))
    _onnx(root / "affine_again", _AFFINE, "max_batch_size: 8", _io([("INPUT0", "FP32", "16")], [("OUTPUT0", "FP32", "16")]))
    _ensemble(
        root / "affine_twice",
        "max_batch_size: 8",
        _io([("INPUT", "FP32", "16")], [("OUTPUT", "FP32", "16")]),
        ("affine", ("INPUT0", "INPUT"), ("OUTPUT0", "between")),
        ("affine_again", ("INPUT0", "between"), ("OUTPUT0", "OUTPUT")),
    )
    _inception(root / "inception_batched", batches=True)
    _python(
        root / "preprocess",
        _PREPROCESS,
        "max_batch_size: 8",
        _io([("INPUT", "STRING", "1")], [("OUTPUT", "FP32", "299, 299, 3")]),
    )
    _ensemble(
        root / "preprocess_inception_ensemble",
        "max_batch_size: 8",
        _io([("INPUT", "STRING", "1")], [("OUTPUT", "FP32", "1001")]),
        ("preprocess", ("INPUT", "INPUT"), ("OUTPUT", "image")),
        ("inception_batched", ("input:0", "image"), ("InceptionV3/Predictions/Softmax:0", "OUTPUT")),
    )


_CPU = "instance_group [ { kind: KIND_CPU count: 1 } ]"


def _dyna(id_type: str, states: str = "") -> str:
    scheduling = "oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000 } " + states
    return (
        _sequence(scheduling, *_CONTROLS, id_type=id_type) + 'parameters { key: "execute_delay_ms" value { string_value: "3" } }'
    )


def _sequence(strategy: str, *controls: str, id_type: str = "") -> str:
    inputs = "".join(
        f'control_input [ {{ name: "{name}" control [ {{ {_CONTROLS[name].format(id_type)} }} ] }} ]\n' for name in controls
    )
    batching = f"sequence_batching {{ max_sequence_idle_microseconds: 10000000 {strategy}\n{inputs}}}\n"
    return batching + _io([("INPUT", "INT32", "1")], [("OUTPUT", "INT32", "1")])


def _io(inputs: list[tuple[str, str, str]], outputs: list[tuple[str, str, str]]) -> str:
    """The fields `input` and `output`, of names, types and dims."""
    return "".join(
        f'{field} [ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'
        for field, tensors in (("input", inputs), ("output", outputs))
        for name, kind, dims in tensors
    )


def _config(model: Path, *fields: str) -> None:
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "config.pbtxt").write_text("\n".join((f'name: "{model.name}"', *fields)))


def _onnx(model: Path, text: str, *fields: str) -> None:
    _config(model, 'platform: "onnxruntime_onnx"', *fields)
    (model / "1" / "model.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())


def _python(model: Path, code: str, *fields: str) -> None:
    _config(model, 'backend: "python"', *fields)
    (model / "1" / "model.py").write_text(code)


def _ensemble(model: Path, *parts: str | tuple[str, tuple[str, str], tuple[str, str]]) -> None:
    fields = [part for part in parts if isinstance(part, str)]
    steps = ",\n".join(
        f'{{ model_name: "{name}" model_version: -1 input_map {{ key: "{given[0]}" value: "{given[1]}" }}'
        f' output_map {{ key: "{made[0]}" value: "{made[1]}" }} }}'
        for name, given, made in (part for part in parts if not isinstance(part, str))
    )
    _config(model, 'platform: "ensemble"', *fields, f"ensemble_scheduling {{ step [ {steps} ] }}")


def _labels(model: Path, name: str, count: int) -> None:
    (model / name).write_text("".join(f"class {index}\n" for index in range(count)))


def _densenet(model: Path) -> None:
    fields = (
        "max_batch_size: 0",
        """
        input [ { name: "data_0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ]
                  reshape { shape: [ 1, 3, 224, 224 ] } } ]
        output [ { name: "fc6_1" data_type: TYPE_FP32 dims: [ 1000 ] reshape { shape: [ 1, 1000, 1, 1 ] }
                   label_filename: "densenet_labels.txt" } ]
        """,
    )
    text = """
<ir_version: 10, opset_import: ["" : 21]>
densenet (float[1,3,224,224] data_0) => (float[1,1000,1,1] fc6_1)
<float[1000,3,1,1] weights = {WEIGHTS}> {
  mean = GlobalAveragePool (data_0)
  fc6_1 = Conv (mean, weights)
}
"""
    weights = ", ".join(f"{index % 1000}.0" for index in range(3000))
    _onnx(model, text.replace("WEIGHTS", weights), *fields)
    _labels(model, "densenet_labels.txt", 1000)


def _inception(model: Path, *, batches: bool = False) -> None:
    given, made = "input:0", "InceptionV3/Predictions/Softmax:0"
    reshaped = ("", "") if batches else ("reshape { shape: [ 1, 299, 299, 3 ] }", "reshape { shape: [ 1, 1001 ] }")
    _config(
        model,
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {8 if batches else 0}",
        f'input [ {{ name: "{given}" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 299, 299, 3 ] {reshaped[0]} }} ]',
        f'output [ {{ name: "{made}" data_type: TYPE_FP32 dims: [ 1001 ] {reshaped[1]}',
        'label_filename: "inception_labels.txt" } ]',
    )
    rows: int | str = "N" if batches else 1
    kind = onnx.TensorProto.FLOAT
    weights = onnx.helper.make_tensor("weights", kind, [3, 1001], [index % 1001 / 1001 for index in range(3003)])
    axes = onnx.helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [1, 2])
    nodes = [
        onnx.helper.make_node("ReduceMean", [given, "axes"], ["mean"], keepdims=0),
        onnx.helper.make_node("MatMul", ["mean", "weights"], ["scores"]),
        onnx.helper.make_node("Softmax", ["scores"], [made]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "inception",
        [onnx.helper.make_tensor_value_info(given, kind, [rows, 299, 299, 3])],
        [onnx.helper.make_tensor_value_info(made, kind, [rows, 1001])],
        [weights, axes],
    )
    made_model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    (model / "1" / "model.onnx").write_bytes(made_model.SerializeToString())
    _labels(model, "inception_labels.txt", 1001)


def write_image(path: Path) -> None:
    """Write a small picture that the clients can read."""
    side = 64
    pixels = bytes(value for row in range(side) for column in range(side) for value in (row * 4, column * 4, 128))
    path.write_bytes(f"P6 {side} {side} 255\n".encode() + pixels)
