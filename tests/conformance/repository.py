"""The model repository of the transcripts: small python models, one per rule that is compared. Built, never committed."""

from __future__ import annotations

from pathlib import Path

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [pb_utils.Tensor(t.name().replace("INPUT", "OUTPUT"), t.as_numpy()) for t in request.inputs()]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""

ADD_SUB = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        for name in ("INPUT0", "INPUT1"):
            config.add_input({"name": name, "data_type": "TYPE_INT32", "dims": [4]})
        for name in ("OUTPUT0", "OUTPUT1"):
            config.add_output({"name": name, "data_type": "TYPE_INT32", "dims": [4]})
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]))
        return responses
"""

FAILING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            what = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().reshape(-1)[0])
            if what == 1:
                raise ValueError("something broke")
            if what == 2:
                error = pb_utils.TritonError("model says no", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            elif what == 3:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("plain error")))
            elif what == 4:
                return []
            elif what == 5:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("gone", pb_utils.TritonError.NOT_FOUND)))
            elif what == 6:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("busy", pb_utils.TritonError.UNAVAILABLE)))
            elif what == 7:
                raise pb_utils.TritonModelException("model exception")
            else:
                out = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
        return responses
"""

OPTIONAL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            names = ",".join(sorted(t.name() for t in request.inputs()))
            out = np.array([[names.encode()]], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("NAMES", out)]))
        return responses
"""

PARAMETERS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = json.dumps({
                "parameters": json.loads(request.parameters()),
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "outputs": sorted(request.requested_output_names()),
            }, sort_keys=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", np.array([seen.encode()], dtype=np.object_))]))
        return responses
"""


def _tensor(name: str, datatype: str, dims: str, more: str = "") -> str:
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} {more} }}'


def _config(batch: int, inputs: list[str], outputs: list[str], more: str = "") -> str:
    return (
        f'backend: "python"\nmax_batch_size: {batch}\n'
        f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n"
        f"instance_group [ {{ kind: KIND_CPU }} ]\n{more}\n"
    )


def _pair(datatype: str, dims: str, more_in: str = "", more_out: str = "") -> tuple[list[str], list[str]]:
    return [_tensor("INPUT0", datatype, dims, more_in)], [_tensor("OUTPUT0", datatype, dims, more_out)]


ALL_TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")

_BATCH = _pair("FP32", "[ -1 ]")
_FIXED = _pair("FP32", "[ 2, 4 ]")
_INT = _pair("INT32", "[ 4 ]")
_STRING = _pair("STRING", "[ -1 ]")

MODELS: dict[str, tuple[str, str]] = {
    "ident": (_config(8, *_BATCH), IDENTITY),
    "fixed": (_config(8, *_FIXED), IDENTITY),
    "nobatch": (_config(0, *_FIXED), IDENTITY),
    "text": (_config(0, *_STRING), IDENTITY),
    "textbatch": (_config(4, *_STRING), IDENTITY),
    "labels": (_config(4, *_pair("FP32", "[ 4 ]", more_out='label_filename: "labels.txt"')), IDENTITY),
    "reshape": (_config(4, *_pair("FP32", "[ 4 ]", "reshape { shape: [ 2, 2 ] }", "reshape { shape: [ 2, 2 ] }")), IDENTITY),
    "scalar": (_config(4, *_pair("INT32", "[ 1 ]", "reshape { shape: [ ] }", "reshape { shape: [ ] }")), IDENTITY),
    "failing": (_config(4, *_INT), FAILING),
    "optional": (
        _config(
            4,
            [_tensor("A", "INT32", "[ 1 ]"), _tensor("B", "INT32", "[ 1 ]", "optional: true")],
            [_tensor("NAMES", "STRING", "[ 1 ]")],
        ),
        OPTIONAL,
    ),
    "addsub": ('backend: "python"\n', ADD_SUB),
    "addsub_bare": ("", ADD_SUB),
    "parameters": (_config(0, [_tensor("INPUT0", "INT32", "[ 1 ]")], [_tensor("SEEN", "STRING", "[ 1 ]")]), PARAMETERS),
    "types": (
        _config(
            0,
            [_tensor(f"INPUT_{t}", t, "[ 2 ]", "optional: true") for t in ALL_TYPES],
            [_tensor(f"OUTPUT_{t}", t, "[ 2 ]") for t in ALL_TYPES],
        ),
        IDENTITY,
    ),
    "queue": (
        _config(
            4,
            *_INT,
            "dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100 priority_levels: 2 "
            "default_priority_level: 1 default_queue_policy { max_queue_size: 10 default_timeout_microseconds: 5000000 "
            "allow_timeout_override: true } priority_queue_policy { key: 2 value { timeout_action: DELAY "
            "default_timeout_microseconds: 7 } } }",
        ),
        IDENTITY,
    ),
    "rich": (
        _config(
            4,
            *_INT,
            "version_policy { specific { versions: [ 1, 3 ] } }\n"
            'parameters { key: "k" value { string_value: "v" } }\nmetric_tags { key: "team" value: "x" }\n'
            "optimization { priority: PRIORITY_MAX graph { level: 1 } execution_accelerators { cpu_execution_accelerator [ "
            '{ name: "openvino" parameters { key: "a" value: "b" } } ] } }\n'
            'model_warmup [ { name: "w" batch_size: 2 count: 3 inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 4 ] '
            "zero_data: true } } } ]\n"
            "model_transaction_policy { decoupled: false }\nresponse_cache { enable: false }",
        ),
        IDENTITY,
    ),
    "latest2": (_config(4, *_INT, "version_policy { latest { num_versions: 2 } }"), IDENTITY),
    "allversions": (_config(4, *_INT, "version_policy { all { } }"), IDENTITY),
}
"""Name -> (config.pbtxt, model.py). `instance_group` is given because the recorded server defaults differ with GPUs."""

VERSIONS: dict[str, tuple[int, ...]] = {"rich": (1, 2, 3), "latest2": (1, 2, 5), "allversions": (2, 7)}

BROKEN: dict[str, tuple[str, str | None]] = {
    "bad_syntax": ("max_batch_size: oops\n", IDENTITY),
    "bad_field": (_config(4, *_INT, "no_such_field: 1"), IDENTITY),
    "bad_name": ('name: "other"\n' + _config(4, *_INT), IDENTITY),
    "bad_dims": (_config(4, *_pair("INT32", "[ 0 ]")), IDENTITY),
    "bad_type": (_config(4, [_tensor("INPUT0", "INT32", "[ 4 ]"), '{ name: "X" dims: [ 1 ] }'], _INT[1]), IDENTITY),
    "bad_preferred": (_config(4, *_INT, "dynamic_batching { preferred_batch_size: [ 9 ] }"), IDENTITY),
    "bad_python": (_config(4, *_INT), "def broken(:\n"),
    "raising": (
        _config(4, *_INT),
        "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n",
    ),
    "no_file": (_config(4, *_INT), None),
    "no_backend": ('backend: "nosuch"\nmax_batch_size: 4\n', IDENTITY),
}
"""Models that cannot be loaded, for the answers to load calls. They lie in the same repository, mode explicit."""


def build(repository: Path) -> None:
    """Write everything under `repository`, which must be empty or missing."""
    for name, (config, source) in MODELS.items():
        for version in VERSIONS.get(name, (1,)):
            _write(repository / name, config, version, source)
    for name, (config, broken) in BROKEN.items():
        _write(repository / name, config, 1, broken)
    (repository / "labels" / "labels.txt").write_text("cat\ndog\nbird\nfish\n", encoding="utf-8")
    empty = repository / "no_versions"
    empty.mkdir()
    (empty / "config.pbtxt").write_text(_config(4, *_INT), encoding="utf-8")


def _write(model: Path, config: str, version: int, source: str | None) -> None:
    folder = model / str(version)
    folder.mkdir(parents=True)
    if config:
        (model / "config.pbtxt").write_text(config, encoding="utf-8")
    if source is not None:
        (folder / "model.py").write_text(source, encoding="utf-8")
