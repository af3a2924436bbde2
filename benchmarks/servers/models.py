"""The models that are served, written into a folder as a model repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

IDENTITY_INPUT = "INPUT0"
IDENTITY_OUTPUT = "OUTPUT0"

PYTHON_IDENTITY = f"""\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "{IDENTITY_INPUT}").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("{IDENTITY_OUTPUT}", values)]))
        return responses
"""

_PYTHON_COUNTING = """\
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def number(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([value], np.int32))])


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            threading.Thread(target=self.count, args=(request.get_response_sender(), count)).start()

    def count(self, sender, count):
        for value in range(1, count):
            sender.send(number(value))
        sender.send(number(count), FINAL)
"""

_COUNTING_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: 0
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}"""

_PYTHON_CALLER = f"""\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        data = np.zeros(16, np.float32)
        for _ in range(int(pb_utils.get_input_tensor_by_name(request, "CALLS").as_numpy()[0])):
            response = pb_utils.InferenceRequest(
                model_name="called",
                requested_output_names=["{IDENTITY_OUTPUT}"],
                inputs=[pb_utils.Tensor("{IDENTITY_INPUT}", data)],
            ).exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            data = pb_utils.get_output_tensor_by_name(response, "{IDENTITY_OUTPUT}").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("DATA", data)])
"""

_CALLER_CONFIG = """\
name: "caller"
backend: "python"
max_batch_size: 0
input [ {{ name: "CALLS" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "DATA" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}"""

_IDENTITY_CONFIG = """\
name: "{name}"
backend: "{backend}"
max_batch_size: 0
input [ {{ name: "{input}" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}"""

_THREAD = 'parameters { key: "isolation" value: { string_value: "thread" } }\n'

_PYTHON_ONNX = """\
import sys

sys.path.append({packages!r})  # behind its own packages, whose numpy it needs

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({file!r}, options, providers=["CPUExecutionProvider"])
        self.inputs = [tensor.name for tensor in self.session.get_inputs()]
        self.outputs = [tensor.name for tensor in self.session.get_outputs()]

    def execute(self, requests):
        rows = [[pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs] for request in requests]
        columns = [np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*rows)]
        results = self.session.run(self.outputs, dict(zip(self.inputs, columns)))
        responses, begin = [], 0
        for row in rows:
            end = begin + len(row[0])
            tensors = [pb_utils.Tensor(name, result[begin:end]) for name, result in zip(self.outputs, results)]
            responses.append(pb_utils.InferenceResponse(tensors))
            begin = end
        return responses
"""

_MLSERVER_IDENTITY = f"""\
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Identity(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        values = NumpyCodec.decode_input(payload.inputs[0])
        outputs = [NumpyCodec.encode_output(name="{IDENTITY_OUTPUT}", payload=values)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
"""


def write_python_identity(repository: Path, name: str, *, in_thread: bool = False, cached: bool = False) -> None:
    """A model.py that copies FP32 of any length; `in_thread`: tpy runs it inside the server; `cached`: its answers are kept."""
    more = (_THREAD if in_thread else "") + ("response_cache { enable: true }\n" if cached else "")
    version = _write_identity_config(repository, name, "python", more)
    (version / "model.py").write_text(PYTHON_IDENTITY)


def write_counting(repository: Path, name: str, *, in_thread: bool = False) -> None:
    """A decoupled model.py that answers COUNT n with n responses, from a thread per request."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(_COUNTING_CONFIG.format(name=name, more=_THREAD if in_thread else ""))
    (version / "model.py").write_text(_PYTHON_COUNTING)


def write_callers(repository: Path, *, in_thread: bool = False) -> None:
    """A model.py `caller` that calls the Python identity model `called` CALLS times."""
    version = repository / "caller" / "1"
    version.mkdir(parents=True)
    (repository / "caller" / "config.pbtxt").write_text(_CALLER_CONFIG.format(more=_THREAD if in_thread else ""))
    (version / "model.py").write_text(_PYTHON_CALLER)
    write_python_identity(repository, "called", in_thread=in_thread)


def write_identity_chain(repository: Path, write: Callable[[Path, str], None], steps: int) -> None:
    """An ensemble `chain` of this many identity models in a row, `step0` and so on, each written by `write`."""
    flow = []
    for number in range(steps):
        write(repository, f"step{number}")
        taken = IDENTITY_INPUT if number == 0 else f"between{number}"
        given = IDENTITY_OUTPUT if number == steps - 1 else f"between{number + 1}"
        flow.append(
            f'{{ model_name: "step{number}" model_version: -1 input_map {{ key: "{IDENTITY_INPUT}" value: "{taken}" }} '
            f'output_map {{ key: "{IDENTITY_OUTPUT}" value: "{given}" }} }}'
        )
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(
        'platform: "ensemble"\n'
        f'input [ {{ name: "{IDENTITY_INPUT}" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n'
        f'output [ {{ name: "{IDENTITY_OUTPUT}" data_type: TYPE_FP32 dims: [ -1 ] }} ]\n'
        f"ensemble_scheduling {{ step [ {', '.join(flow)} ] }}\n"
    )


def write_builtin_identity(repository: Path, name: str) -> None:
    """The same with the backend `identity`."""
    _write_identity_config(repository, name, "identity", "")


def write_compiled_identity(repository: Path, name: str, library: Path, *, in_process: bool = False) -> None:
    """The same with a backend in C, whose library is copied beside the model; `in_process`: tpy runs it inside the server."""
    _write_identity_config(repository, name, "compiled", _THREAD if in_process else "")
    shutil.copy(library, repository / name / "libtriton_compiled.so")


def _write_identity_config(repository: Path, name: str, backend: str, more: str) -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    config = _IDENTITY_CONFIG.format(name=name, backend=backend, input=IDENTITY_INPUT, output=IDENTITY_OUTPUT, more=more)
    (repository / name / "config.pbtxt").write_text(config)
    return version


def write_mlserver_identity(folder: Path, name: str) -> None:
    """The same as a runtime of MLServer; `folder` is its model repository."""
    folder.mkdir(parents=True)
    (folder / "identity_runtime.py").write_text(_MLSERVER_IDENTITY)
    (folder / "model-settings.json").write_text(f'{{"name": "{name}", "implementation": "identity_runtime.Identity"}}\n')


def write_onnx_model(repository: Path, name: str, file: Path, config: str) -> None:
    """A copy of an ONNX file with `config` as its config.pbtxt, without the name."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    shutil.copy(file, version / "model.onnx")
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')


def write_python_onnx_model(repository: Path, name: str, file: Path, config: str, packages: Path) -> None:
    """A model.py that runs an ONNX file with onnxruntime, one thread, whole batches at a time; `packages` is the folder that has
    onnxruntime. `config` as in `write_onnx_model`."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(_PYTHON_ONNX.format(packages=str(packages), file=str(file)))
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
