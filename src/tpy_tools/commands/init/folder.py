"""The texts of a model folder: config.pbtxt with comments, a model.py around a pickled model, a request to try it with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import orjson

from tpy.config import ModelConfig
from tpy.config.model_config import EXECUTION_ENVIRONMENT, ModelInput, ModelOutput
from tpy.messages import DataType
from tpy.messages.datatypes import BY_WORD
from tpy_tools.commands.init.convert import Input

_ELEMENTS_SHOWN_MAX = 16
_VARIABLE_SIZE = 1
"""Put into the test request where a size is open."""

_FOR_ANY = "# Sizes are those of one row; -1 is any size."

_MODEL_PY = '''"""Serves {filename}, which lies beside this file: {takes} -> {result}{and_probabilities}. Change it."""

from pathlib import Path

import joblib
import numpy as np{pandas}
import triton_python_backend_utils as pb_utils{columns}


class TritonPythonModel:
    def initialize(self, args):
        self.model = joblib.load(Path(__file__).with_name("{filename}"))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
{read}
        {result} = self.model.predict(rows){encode}
        outputs = [pb_utils.Tensor("{result}", {result}.reshape(len(rows), {labels}))]{probabilities}
        return pb_utils.InferenceResponse(outputs)
'''


_READ = '        rows = pb_utils.get_input_tensor_by_name(request, "{name}").as_numpy()'

_READ_TEXTS = _READ + "\n        rows = [text.decode() for text in rows[:, 0]]"

_READ_COLUMNS = """        rows = pd.DataFrame({name: self.column(request, name) for name in COLUMNS})"""

_COLUMN = """
    def column(self, request, name):
        values = pb_utils.get_input_tensor_by_name(request, name).as_numpy()[:, 0]
        return [value.decode() for value in values] if values.dtype == object else values
"""


def model_py(facts: Mapping[str, object], filename: str) -> str:
    """A Python model that calls `predict`, for what convert.py found out about it."""
    columns = facts["columns"]
    given = _inputs(facts)[0]
    read = _READ_COLUMNS if columns else (_READ_TEXTS if given.datatype == "BYTES" else _READ).format(name=given.name)
    labels = facts["labels"]
    assert isinstance(labels, list)
    kind = {"TYPE_STRING": ".astype(str).astype(object)", "TYPE_INT64": ".astype(np.int64)"}.get(str(facts["label"]), "")
    probabilities = (
        '\n        outputs.append(pb_utils.Tensor("probabilities", self.model.predict_proba(rows).astype(np.float32)))'
    )
    return _MODEL_PY.format(
        filename=filename,
        takes="a column each" if columns else given.name,
        result=facts["result"],
        read=read,
        pandas="\nimport pandas as pd" if columns else "",
        columns=f"\n\nCOLUMNS = {json.dumps(columns, ensure_ascii=False)}" if columns else "",
        and_probabilities="" if facts["probabilities"] is None else " and probabilities",
        encode=kind or ".astype(np.float64)",
        labels=", ".join(map(str, labels)),
        probabilities="" if facts["probabilities"] is None else probabilities,
    ) + (_COLUMN if columns else "")


def _inputs(facts: Mapping[str, object]) -> tuple[Input, ...]:
    found = facts["inputs"]
    assert isinstance(found, list)
    return tuple(Input(name, datatype, tuple(dims)) for name, datatype, dims in found)


def pickle_tensors(facts: Mapping[str, object]) -> tuple[tuple[ModelInput, ...], tuple[ModelOutput, ...]]:
    """The tensors of that Python model."""
    labels, probabilities = facts["labels"], facts["probabilities"]
    given = tuple(ModelInput(name=each.name, data_type=BY_WORD[each.datatype], dims=each.dims) for each in _inputs(facts))
    label_type = {"TYPE_STRING": DataType.BYTES, "TYPE_INT64": DataType.INT64}.get(str(facts["label"]), DataType.FP64)
    outputs = [ModelOutput(name=str(facts["result"]), data_type=label_type, dims=_sizes(labels))]
    if probabilities is not None:
        outputs.append(ModelOutput(name="probabilities", data_type=DataType.FP32, dims=_sizes(probabilities)))
    return given, tuple(outputs)


def torch_tensors(inputs: Sequence[Input], facts: Mapping[str, object]) -> tuple[tuple[ModelInput, ...], tuple[ModelOutput, ...]]:
    """The tensors of a model of PyTorch: inputs have the names of arguments of `forward` where all have, else names that say
    their place in it."""
    words = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL", "bfloat16": "BF16"}
    found = facts["outputs"]
    arguments = facts["arguments"]
    assert isinstance(found, list)
    assert isinstance(arguments, list)
    named = [each.name for each in inputs] == arguments[: len(inputs)]
    given = tuple(
        ModelInput(
            name=each.name if named or "__" in each.name else f"{each.name}__{at}",
            data_type=BY_WORD[each.datatype],
            dims=each.dims,
        )
        for at, each in enumerate(inputs)
    )
    outputs = tuple(
        ModelOutput(
            name=f"OUTPUT__{at}",
            data_type=BY_WORD[words.get(each["datatype"], each["datatype"].upper())],
            dims=_sizes(each["dims"]),
        )
        for at, each in enumerate(found)
    )
    return given, outputs


def _sizes(sizes: object) -> tuple[int, ...]:
    assert isinstance(sizes, list)
    return tuple(int(size) for size in sizes)


def config_text(config: ModelConfig) -> str:
    """config.pbtxt, each part with a line that says what it is for."""
    lines = [
        f"# {config.name}: what clients send and get, and how it is run. tpy and Triton read this file.",
        f'backend: "{config.backend}"',
        "",
    ]
    if config.max_batch_size > 0:
        lines += [
            "# Requests may have up to this many rows, and rows of several requests are run together.",
            f"max_batch_size: {config.max_batch_size}",
            "dynamic_batching { }",
        ]
    else:
        lines += ["# Sizes below are those of a whole request: the model has no first dimension for rows.", "max_batch_size: 0"]
    lines += ["", _FOR_ANY if config.max_batch_size > 0 else "# -1 is any size.", *_tensors("input", config.input)]
    lines += _tensors("output", config.output)
    lines += ["", "# Copies of the model that run at the same time.", "instance_group [ { count: 1 kind: KIND_CPU } ]"]
    if config.backend == "fil":
        lines += [
            "",
            "# Of a classifier: probabilities in place of the number of the class. The output then has a column for each class.",
            '# parameters { key: "predict_proba" value { string_value: "true" } }',
        ]
    if environment := config.parameter(EXECUTION_ENVIRONMENT):
        lines += [
            "",
            "# The virtual environment in which model.py runs.",
            f'parameters {{ key: "{EXECUTION_ENVIRONMENT}" value {{ string_value: {json.dumps(environment)} }} }}',
        ]
    return "\n".join(lines) + "\n"


def _tensors(kind: str, tensors: Sequence[ModelInput | ModelOutput]) -> list[str]:
    if not tensors:
        return [f'# {kind} [ {{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }} ]  # to be written: model.py does not say it']
    rows = [_tensor(tensor) for tensor in tensors]
    return [f"{kind} [", ",\n".join(rows), "]"]


def _tensor(tensor: ModelInput | ModelOutput) -> str:
    parts = [
        f"name: {json.dumps(tensor.name)}",
        f"data_type: {tensor.data_type.config_name}",
        f"dims: [ {', '.join(map(str, tensor.dims))} ]",
    ]
    if tensor.reshape is not None:
        parts.append(f"reshape {{ shape: [{', '.join(map(str, tensor.reshape.shape))}] }}")
    return f"  {{ {' '.join(parts)} }}"


def sample_request(config: ModelConfig, texts: Mapping[str, str]) -> dict[str, object]:
    """A request of one row, as for POST /v2/models/NAME/infer; `texts` are values that inputs are known to take."""
    batch = (1,) if config.max_batch_size > 0 else ()
    inputs = []
    for tensor in config.input:
        shape = [*batch, *(_VARIABLE_SIZE if size < 0 else size for size in tensor.dims)]
        data = _sample(tensor.data_type, shape, texts.get(tensor.name))
        inputs.append({"name": tensor.name, "datatype": tensor.data_type.value, "shape": shape, "data": data})
    return {"inputs": inputs}


def _sample(datatype: DataType, shape: Sequence[int], text: str | None) -> list[object]:
    count = int(np.prod(shape))
    value: object = (text or "text") if datatype is DataType.BYTES else True if datatype is DataType.BOOL else 1
    return [float(value) if isinstance(value, int) and datatype.value.startswith(("FP", "BF")) else value] * count


def sample_values(config: ModelConfig, texts: Mapping[str, str]) -> dict[str, object] | None:
    """Names and values of one row, for the command line; None where they would be long."""
    values: dict[str, object] = {}
    total = 0
    for tensor in config.input:
        shape = [_VARIABLE_SIZE if size < 0 else size for size in tensor.dims]
        data = _sample(tensor.data_type, shape, texts.get(tensor.name))
        total += len(data)
        values[tensor.name] = data[0] if shape == [1] and tensor.data_type is DataType.BYTES else data
    return values if values and total <= _ELEMENTS_SHOWN_MAX else None


def as_json(document: object) -> str:
    """One line of JSON."""
    return orjson.dumps(document).decode()
