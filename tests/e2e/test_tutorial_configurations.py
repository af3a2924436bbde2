"""Configurations as tutorials and notes about Triton have them, word by word, each with a model of that form: what is served
answers, what is refused says why. Sequences, ensembles, Python models and pipelines of DALI have tests of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import helper, numpy_helper
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput, InferRequestedOutput

from tests.backends import onnx_models
from tpy.messages import DataType

from .repositories import ModelFolder
from .server import ServerProcess

pytestmark = pytest.mark.time_limit(300)  # frameworks take long to import on a busy machine

Array = np.ndarray[Any, Any]

SIDE = 244
WEIGHTS = np.linspace(1, 4, 16, dtype=np.float32).reshape(1, 16)
MODULES = {"onnxruntime": "onnxruntime", "pytorch": "torch", "tensorflow": "tensorflow", "openvino": "openvino"}
INSTALLED = [name for name, module in MODULES.items() if find_spec(module)]


def expected(given: dict[str, Array]) -> Array:
    """Computes as every model here, of whatever shapes: the mean difference of its two inputs, times 16 weights."""
    first, second = (array.astype(np.float64) for array in given.values())
    made: Array = (first - second).mean(axis=(1, 2, 3), keepdims=True).reshape(-1, 1) * WEIGHTS
    return made


class Form(NamedTuple):
    """Shapes of a model: -1 is open."""

    input: tuple[int, ...] = (-1, 3, SIDE, SIDE)
    output: tuple[int, ...] = (-1, 16)


BATCHED = Form()
FIXED = Form((1, 3, SIDE, SIDE), (1, 16))
FOUR_DIMENSIONS = Form((1, 3, SIDE, SIDE), (1, 16, 1, 1))
ANY_SIZE = Form((-1, 3, -1, -1), (-1, 1, 16))


def write_onnx(folder: Path, form: Form, names: Sequence[str] = ("input0", "input1", "output0")) -> None:
    first, second, output = names
    shapes = [["N" if size < 0 and not place else None if size < 0 else size for place, size in enumerate(each)] for each in form]
    nodes = [
        helper.make_node("Sub", [first, second], ["difference"]),
        helper.make_node("ReduceMean", ["difference"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "column"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Reshape", ["product", "shape"], [output]),
    ]
    constants = {"weights": WEIGHTS, "column": np.array([-1, 1]), "shape": np.array(form.output)}
    content = onnx_models.model(
        nodes,
        [onnx_models.value(name, DataType.FP32, shapes[0]) for name in (first, second)],
        [onnx_models.value(output, DataType.FP32, shapes[1])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    (folder / "model.onnx").write_bytes(content)


def write_torch(folder: Path, form: Form) -> None:
    import torch

    class Difference(torch.nn.Module):
        def forward(self, input0: Any, input1: Any) -> Any:
            return ((input0 - input1).mean((1, 2, 3)).reshape(-1, 1) @ torch.from_numpy(WEIGHTS)).reshape(form.output)

    one = torch.ones(1, 3, SIDE, SIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that TorchScript is old
        torch.jit.trace(Difference(), (one, one)).save(str(folder / "model.pt"))


def write_tensorflow(folder: Path, form: Form) -> None:
    import tensorflow as tf

    spec = [tf.TensorSpec([None if size < 0 else size for size in form.input], tf.float32, name=f"input{n}") for n in (0, 1)]

    def difference(input0: Any, input1: Any) -> dict[str, Any]:
        rows = tf.reshape(tf.reduce_mean(input0 - input1, [1, 2, 3]), [-1, 1])
        return {"output0": tf.reshape(rows @ WEIGHTS, form.output)}

    module = tf.Module()
    module.compute = tf.function(difference, input_signature=spec)
    tf.saved_model.save(module, str(folder / "model.savedmodel"), signatures={"serving_default": module.compute})


def write_openvino(folder: Path, form: Form) -> None:
    import openvino

    write_onnx(folder, form)
    openvino.save_model(openvino.convert_model(folder / "model.onnx"), folder / "model.xml", compress_to_fp16=False)
    (folder / "model.onnx").unlink()


def write_inception(folder: Path, _: Form) -> None:
    """A frozen graph with the names of Inception's tensors."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [None, 299, 299, 3], name="input")
        scores = tf.reduce_mean(image, [1, 2]) @ tf.constant(np.eye(3, 1001, dtype=np.float32) * 10)
        tf.nn.softmax(scores, name="InceptionV3/Predictions/Softmax")
    (folder / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


WRITERS: dict[str, Callable[[Path, Form], None]] = {
    "onnxruntime": write_onnx,
    "pytorch": write_torch,
    "tensorflow": write_tensorflow,
    "openvino": write_openvino,
}


class Served(NamedTuple):
    """A configuration, its framework, the form of its model, and the sizes of the batches that are asked for; 0: dims are all."""

    config: str
    framework: str = "onnxruntime"
    form: Form = BATCHED
    batches: tuple[int, ...] = (1, 7)
    dims: tuple[int, ...] = (3, SIDE, SIDE)
    output: tuple[int, ...] = (16,)


PLATFORM = {
    "onnxruntime": 'backend: "onnxruntime"',
    "pytorch": 'backend: "pytorch"',
    "tensorflow": 'platform: "tensorflow_savedmodel"',
    "openvino": 'backend: "openvino"',
}
PAIR = """
input [
  {
    name: "input0"
    data_type: TYPE_FP32
    dims: [ 3, 244, 244 ]
  },
  {
    name: "input1"
    data_type: TYPE_FP32
    dims: [ 3, 244, 244 ]
  }
]
output [
  {
    name: "output0"
    data_type: TYPE_FP32
    dims: [ 16 ]
  }
]
"""
ONNX_PAIR = f'backend: "onnxruntime"\nmax_batch_size: 8\n{PAIR}'

SERVED = {
    **{f"{name}_batched": Served(f"{head}\nmax_batch_size: 8\n{PAIR}", name) for name, head in PLATFORM.items()},
    **{
        f"{name}_fixed": Served(
            head + "\nmax_batch_size: 0\n" + PAIR.replace("[ 3,", "[ 1, 3,").replace("[ 16 ]", "[ 1, 16 ]"),
            name, FIXED, (0,), (1, 3, SIDE, SIDE), (1, 16),
        )
        for name, head in PLATFORM.items()
    },
    **{
        f"{name}_reshaped": Served(
            head + "\nmax_batch_size: 0\n"
            + PAIR.replace("[ 3, 244, 244 ]", "[ 3, 244, 244 ]\n    reshape { shape: [ 1, 3, 244, 244 ] }").replace(
                "[ 16 ]", "[ 16 ]\n    reshape { shape: [ 1, 16, 1, 1 ] }"
            ),
            name, FOUR_DIMENSIONS, (0,),
        )
        for name, head in PLATFORM.items()
    },
    "pytorch_labels": Served(
        """
platform: "pytorch_libtorch"
max_batch_size: 8
input [
  { name: "input0" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, -1 ] },
  { name: "input1" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, -1 ] }
]
output [
  {
    name: "output0"
    data_type: TYPE_FP32
    dims: [ 16 ]
    reshape { shape: [ 1, 16 ] }
    label_filename: "labels.txt"
  }
]
""",
        "pytorch", ANY_SIZE, (1, 7), (3, 32, 48),
    ),
    "no_commas": Served(
        """
name: "no_commas"
platform: "onnxruntime_onnx"
max_batch_size: 8
input {
  name: "input0"
  data_type: TYPE_FP32
  dims: 3 dims: 244 dims: 244
}
input {
  name: "input1"
  data_type: TYPE_FP32
  dims: [3, 244, 244]
}
output {
  name: "output0"
  data_type: TYPE_FP32
  dims: 16
}
instance_group {
  kind: KIND_GPU
  count: 1
}
"""
    ),
    "all_versions": Served(ONNX_PAIR + "version_policy: { all {} }"),
    "latest_versions": Served(ONNX_PAIR + "version_policy: { latest { num_versions: 2 } }"),
    "specific_versions": Served(ONNX_PAIR + "version_policy: { specific { versions: [1, 2] } }"),
    "groups": Served(
        ONNX_PAIR
        + """
instance_group [
  { count: 2 kind: KIND_CPU },
  { count: 1 kind: KIND_GPU gpus: [ 0 ] },
  { count: 2 kind: KIND_GPU gpus: [ 1, 2 ] }
]
"""
    ),
    "batcher": Served(
        ONNX_PAIR
        + "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 preserve_ordering: true }"
    ),
    "priorities": Served(
        ONNX_PAIR
        + """
dynamic_batching {
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy {
    timeout_action: REJECT default_timeout_microseconds: 60000000 allow_timeout_override: true max_queue_size: 16
  }
}
"""
    ),
    "accelerated": Served(
        ONNX_PAIR
        + """
optimization { execution_accelerators {
  gpu_execution_accelerator : [ {
    name : "tensorrt"
    parameters { key: "precision_mode" value: "FP16" }
    parameters { key: "max_workspace_size_bytes" value: "1073741824" }
  } ]
} }
"""
    ),
    "warmed_up": Served(
        ONNX_PAIR
        + """
model_warmup [
  {
    name: "warmup 1"
    batch_size: 4
    inputs { key: "input0" value { data_type: TYPE_FP32 dims: [ 3, 244, 244 ] random_data: true } }
    inputs { key: "input1" value { data_type: TYPE_FP32 dims: [ 3, 244, 244 ] zero_data: true } }
  }
]
"""
    ),
}  # fmt: skip


class Refused(NamedTuple):
    """A configuration, the file that its model has, and what the reason says."""

    config: str
    file: str
    reason: str


REFUSED = {
    "tensorrt_batched": Refused(
        f'backend: "tensorrt"\nmax_batch_size: 8\n{PAIR}', "model.plan", "backend 'tensorrt' needs TensorRT"
    ),
    "resnet50_trt_fp16": Refused(
        """
name: "resnet50_trt_fp16"
platform: "tensorrt_plan"
max_batch_size: 8
input { name: "input" data_type: TYPE_FP32 dims: [3, 224, 224] }
output { name: "output" data_type: TYPE_FP32 dims: 1000 }
instance_group { kind: KIND_GPU count: 1 }
""",
        "model.plan",
        "backend 'tensorrt' needs TensorRT",
    ),
    "versions_without_brackets": Refused(
        ONNX_PAIR + "version_policy: { specific { versions: 1, 2 } }", "model.onnx", "several values need brackets"
    ),
    "warmup_input": Refused(
        ONNX_PAIR
        + 'model_warmup [ { name: "w" batch_size: 1 input { key: "input0" value { data_type: TYPE_FP32 dims: [ 3, 244, 244 ] '
        + "zero_data: true } } } ]",
        "model.onnx",
        "ModelWarmup has no field 'input'; did you mean 'inputs'?",
    ),
    "custom_operations": Refused(
        ONNX_PAIR + 'model_operations { op_library_filename: [ "libcustom_ops.so" ] }',
        "model.onnx",
        "libcustom_ops.so: cannot open shared object file",
    ),
    "custom_model": Refused(f'backend: "custom"\nmax_batch_size: 8\n{PAIR}', "model.so", 'runtime: "model.so" in config.pbtxt'),
    "encrypted": Refused(
        ONNX_PAIR + 'model_repository_agents { agents [ { name: "decrypt" parameters [ { key: "key" value: "k" } ] } ] }',
        "model.onnx",
        "unable to find repository agent 'decrypt'",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("tutorials")
    for name, served in SERVED.items():
        if served.framework in INSTALLED:
            ModelFolder(repository, name).config(served.config).file("labels.txt", "\n".join(f"label {n}" for n in range(16)))
            for version in ("1", "2") if "version" in name else ("1",):
                (repository / name / version).mkdir()
                WRITERS[served.framework](repository / name / version, served.form)
    for name, refused in REFUSED.items():
        ModelFolder(repository, name).config(refused.config).file(f"1/{refused.file}", b"no model")
        if refused.file == "model.onnx":
            write_onnx(repository / name / "1", BATCHED)
    if "tensorflow" in INSTALLED:
        config = """
name: "inception_graphdef"
platform: "tensorflow_graphdef"
max_batch_size: 128
input [ { name: "input" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 299, 299, 3 ] } ]
output [ { name: "InceptionV3/Predictions/Softmax" data_type: TYPE_FP32 dims: [ 1001 ] label_filename: "inception_labels.txt" } ]
"""
        labels = "\n".join(f"class {n}" for n in range(1001))
        ModelFolder(repository, "inception_graphdef").config(config).file("inception_labels.txt", labels).file("1/.keep", "")
        write_inception(repository / "inception_graphdef" / "1", BATCHED)
    flags = ("--exit-on-error=false", "--strict-model-config=false", "--strict-readiness=false")
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield server


def asked(client: InferenceServerClient, model: str, given: dict[str, Array], output: str, **options: Any) -> Array:
    tensors = []
    for name, array in given.items():
        tensors.append(InferInput(name, list(array.shape), "FP32"))
        tensors[-1].set_data_from_numpy(array)
    answer = client.infer(model, tensors, outputs=[InferRequestedOutput(output, **options)])
    made: Array = answer.as_numpy(output)
    return made


@pytest.mark.parametrize("name", SERVED)
def test_it_is_served(server: ServerProcess, name: str) -> None:
    served = SERVED[name]
    if served.framework not in INSTALLED:
        pytest.skip(f"needs {MODULES[served.framework]}: make test-backends")
    draw = np.random.default_rng(1)
    with InferenceServerClient(server.http) as client:
        for batch in served.batches:
            shape = (batch, *served.dims) if batch else served.dims
            given = {f"input{number}": draw.random(shape, np.float32) + number for number in (0, 1)}
            made = asked(client, name, given, "output0")
            assert made.shape == ((batch, *served.output) if batch else served.output)
            flat = {key: array.reshape(-1, *served.dims[-3:]) for key, array in given.items()}
            np.testing.assert_allclose(made.reshape(-1, 16), expected(flat), rtol=1e-2)  # OpenVINO may calculate in bfloat16


def test_both_versions_are_served(server: ServerProcess) -> None:
    with InferenceServerClient(server.http) as client:
        for name in ("all_versions", "latest_versions", "specific_versions"):
            assert client.is_model_ready(name, "1")
            assert client.is_model_ready(name, "2")


@pytest.mark.skipif("pytorch" not in INSTALLED, reason="needs torch: make test-backends")
def test_labels_of_a_reshaped_output(server: ServerProcess) -> None:
    given = {f"input{number}": np.full((1, 3, 8, 8), 1 - number, np.float32) for number in (0, 1)}
    with InferenceServerClient(server.http) as client:
        assert asked(client, "pytorch_labels", given, "output0", class_count=2).tolist() == [
            [b"4.000000:15:label 15", b"3.800000:14:label 14"]
        ]


@pytest.mark.skipif("tensorflow" not in INSTALLED, reason="needs tensorflow: make test-backends")
def test_the_frozen_graph_of_inception(server: ServerProcess) -> None:
    image = np.zeros((1, 299, 299, 3), np.float32)
    image[..., 2] = 1
    with InferenceServerClient(server.http) as client:
        (label,) = asked(client, "inception_graphdef", {"input": image}, "InceptionV3/Predictions/Softmax", class_count=1)[0]
    assert label.endswith(b":2:class 2")


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_reason(server: ServerProcess, name: str) -> None:
    if REFUSED[name].file == "model.plan" and any(find_spec(module) for module in ("tensorrt", "tensorrt_rtx")):
        pytest.skip("TensorRT is installed")
    with InferenceServerClient(server.http) as client:
        rows = {row["name"]: row for row in client.get_model_repository_index()}
        assert rows[name]["state"] == "UNAVAILABLE", rows[name]
        with pytest.raises(InferenceServerException):
            client.get_model_metadata(name)
    assert REFUSED[name].reason in rows[name]["reason"], rows[name]
