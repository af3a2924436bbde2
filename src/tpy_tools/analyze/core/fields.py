"""Settings that are known by the name of their field, or by their meaning for a backend."""

from __future__ import annotations

import orjson

from tpy.config import ConfigError, ModelConfig, parse_json, to_json

FIELD = "field:"
"""In front of the name of a field of the configuration, whose values are JSON."""

THREADS = "threads"
"""The number of threads of an execution: a parameter of the backend, whose name differs. "threads?": if there is one."""

_THREAD_PARAMETERS = {
    "onnxruntime": "intra_op_thread_count",
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
    "tensorflow": "TF_NUM_INTRA_THREADS",
    "litert": "tflite_num_threads",
    "armnn_tflite": "tflite_num_threads",
}


class FieldError(ValueError):
    """A value does not fit into its field. `str()` says why."""


def thread_parameter(config: ModelConfig) -> str:
    """The parameter of the model's backend that is its number of threads, "": not known."""
    return _THREAD_PARAMETERS.get(config.backend or config.platform.partition("_")[0], "")


def field_text(config: ModelConfig, name: str) -> str | None:
    """A field as JSON, None when it is not set."""
    value = to_json(config).get(name)
    return None if value is None else json_text(value)


def json_text(value: object) -> str:
    """A value as JSON: equal ones as equal text."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def changed_field(config: ModelConfig, name: str, value: int | str | None) -> ModelConfig:
    """The configuration with a field of this JSON, without it for None. Raises FieldError."""
    document = dict(to_json(config))
    document.pop(name, None)
    if value is not None:
        document[name] = orjson.loads(str(value))
    try:
        return parse_json(orjson.dumps(document))
    except ConfigError as error:
        raise FieldError(f"{name} {value}: {error}") from None


def holds_field(served: ModelConfig, wanted: ModelConfig, name: str) -> bool:
    """True when a served configuration has everything that was wanted of a field; defaults are what the server may complete."""
    return _holds(to_json(served).get(name), to_json(wanted).get(name))


def _holds(got: object, wanted: object) -> bool:
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(_holds(got.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list):
        return not wanted or (isinstance(got, list) and len(got) == len(wanted) and all(map(_holds, got, wanted)))
    return not wanted or got == wanted
