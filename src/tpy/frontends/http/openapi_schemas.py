"""Bodies of the HTTP port as JSON Schemas: the components of the OpenAPI document.

Answers have every member that they name as required; others may come with them, so that a newer server fits an older document.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tpy.config.rollout import RolloutPlan
from tpy.limits import RECORDING_BYTES_MAX, RECORDING_PATTERNS_MAX, RECORDING_REQUESTS_MAX, RECORDING_SECONDS_MAX
from tpy.messages import (
    ConfigProblem,
    Contents,
    GpuUse,
    ModelExplanation,
    ModelGraph,
    ModelState,
    RecordingState,
    RolloutStatus,
    TracedRequest,
)
from tpy.messages.datatypes import DataType

Schema = dict[str, object]


def reference(name: str) -> Schema:
    """The place of the schema `name` in the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these members; it may have others."""
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}}
    if required:
        schema["required"] = list(required)
    return schema


def _of_messages(*messages: type[msgspec.Struct]) -> dict[str, Schema]:
    """The schemas of messages that are answered as they are, with those of their parts."""
    _, components = msgspec.json.schema_components(messages, ref_template="#/components/schemas/{name}")
    for schema in components.values():
        if "properties" in schema:
            schema["required"] = list(schema["properties"])  # what has a default is answered, too
    return components


def _of_bodies(*messages: type[msgspec.Struct]) -> dict[str, Schema]:
    """The schemas of messages that are sent to the server, with those of their parts: what has a default may be left out."""
    return msgspec.json.schema_components(messages, ref_template="#/components/schemas/{name}")[1]


def _or_empty(schema: Schema) -> Schema:
    """An object, or what some clients write for an empty one: null, or an array without elements."""
    return {**schema, "type": ["object", "null", "array"], "maxItems": 0}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_U64: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
_STATE: Final[Schema] = {"type": "string", "enum": [state.value for state in ModelState]}
_DATATYPE: Final[Schema] = {"type": "string", "enum": [kind.value for kind in DataType]}
_DATA: Final[Schema] = {"type": "array", "description": "The elements in row-major order, flat or nested as the shape."}
_PARAMETERS: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_DURATION: Final[Schema] = reference("Duration")

_TENSOR: Final = _object({"name": _TEXT, "datatype": _TEXT, "shape": _array({"type": "integer"})})
_INPUT: Final = _object(
    {"name": _TEXT, "datatype": _DATATYPE, "shape": _array(_COUNT)}, {"data": _DATA, "parameters": _PARAMETERS}
)
_OUTPUT: Final = _object(
    {"name": _TEXT, "datatype": _DATATYPE, "shape": _array(_COUNT)}, {"data": _DATA, "parameters": _PARAMETERS}
)
_ASKED: Final = _object({"name": _TEXT}, {"parameters": _PARAMETERS})
_COMPUTE: Final[Schema] = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), _DURATION)
_INFERENCE: Final = _object(
    dict.fromkeys(("success", "fail", "queue", *_COMPUTE), _DURATION), {"cache_hit": _DURATION, "cache_miss": _DURATION}
)
_TRACE_LEVELS: Final = _array({"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]})
_CONTENTS: Final[Schema] = {"type": "string", "enum": [each.value for each in Contents]}
_RECORDING_OPTIONS: Final[Schema] = {
    "models": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": RECORDING_PATTERNS_MAX},
    "sample": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": RECORDING_BYTES_MAX},
    "max_requests": {"type": "integer", "minimum": 1, "maximum": RECORDING_REQUESTS_MAX},
    "max_seconds": {"type": "integer", "minimum": 1, "maximum": RECORDING_SECONDS_MAX},
    "inputs": _CONTENTS,
    "outputs": _CONTENTS,
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object({"error": _TEXT}),
    "Duration": _object({"count": _COUNT, "ns": _COUNT}),
    "Links": _object({"name": _TEXT, "version": _TEXT, "links": {"type": "object", "additionalProperties": _TEXT}}),
    "ServerMetadata": _object({"name": _TEXT, "version": _TEXT, "extensions": _array(_TEXT)}),
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": _array(_TEXT),
            "platform": _TEXT,
            "inputs": _array(reference("Tensor")),
            "outputs": _array(reference("Tensor")),
        }
    ),
    "Tensor": _TENSOR,
    "ModelConfig": _object({"name": _TEXT}),
    "Models": _object({"models": _array(reference("ModelEntry"))}),
    "ModelEntry": _object({"name": _TEXT}, {"version": _TEXT, "state": _STATE, "reason": _TEXT, "metadata": _TEXT}),
    "Overview": _object(
        {
            "number": _COUNT,
            "name": _TEXT,
            "version": _TEXT,
            "live": _FLAG,
            "ready": _FLAG,
            "at_ms": _COUNT,
            "models": _array(reference("OverviewEntry")),
        },
        {
            "machine": _object(
                {"memory_used_bytes": _COUNT, "memory_total_bytes": _COUNT},
                {"cpu": {"type": "number"}, "gpus": _array(reference("GpuUse"))},
            )
        },
    ),
    "OverviewEntry": _object(
        {"name": _TEXT, "version": _TEXT},
        {
            "namespace": _TEXT,
            "state": _STATE,
            "reason": _TEXT,
            **dict.fromkeys(("requests", "failures", "inferences", "executions"), _COUNT),
            **dict.fromkeys(("latency_ns", "queue_ns", "compute_ns", "last_request_ms", "memory_bytes"), _COUNT),
        },
    ),
    **_of_messages(GpuUse),
    "LogLines": _object({"lines": _array(_object({"number": _COUNT, "text": _TEXT}))}),
    "Index": _array(_object({"name": _TEXT}, {"version": _TEXT, "state": _STATE, "reason": _TEXT})),
    "Statistics": _object({"model_stats": _array(reference("ModelStatistics"))}),
    "ModelStatistics": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": _COUNT,
            "inference_count": _COUNT,
            "execution_count": _COUNT,
            "inference_stats": _INFERENCE,
            "batch_stats": _array(_object({"batch_size": _COUNT, **_COMPUTE})),
        },
        {
            "generation_stats": {"type": "object", "additionalProperties": {"type": "number"}},
            "response_stats": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _DURATION}},
            "memory_usage": _array(_object({"type": _TEXT, "id": _COUNT, "byte_size": _COUNT})),
        },
    ),
    "Labels": _object({"labels": {"type": "object", "additionalProperties": _array(_TEXT)}}),
    "RecentTraces": _object({"traces": _array(reference("TracedRequest"))}),
    **_of_messages(TracedRequest),
    "CheckRequest": _or_empty(_object({}, {"parameters": _or_empty(_object({}, {"config": _TEXT}))})),
    "ConfigCheck": _object(
        {
            "problems": _array(reference("ConfigProblem")),
            "file": _TEXT,
            "text": _TEXT,
            "config": {"type": ["object", "null"]},
            "versions": _array(_TEXT),
            "selected": _array(_TEXT),
        }
    ),
    **_of_messages(ConfigProblem),
    "Explanations": _object({"explanations": _array(reference("ModelExplanation"))}),
    **_of_messages(ModelExplanation),
    **_of_messages(ModelGraph),
    **_of_messages(RolloutStatus),
    "RolloutAction": _object(
        {"action": {"type": "string", "enum": ["start", "promote", "roll_back"]}}, {"plan": reference("RolloutPlan")}
    ),
    **_of_bodies(RolloutPlan),
    "InferRequest": _object(
        {"inputs": _array(reference("InferInput"))},
        {"id": _TEXT, "parameters": _PARAMETERS, "outputs": _array(reference("InferRequestedOutput"))},
    ),
    "InferInput": _INPUT,
    "InferRequestedOutput": _ASKED,
    "InferResponse": _object(
        {"model_name": _TEXT, "model_version": _TEXT, "outputs": _array(reference("InferOutput"))},
        {"id": _TEXT, "parameters": _PARAMETERS},
    ),
    "InferOutput": _OUTPUT,
    "GenerateRequest": {
        "type": "object",
        "description": "A member for each input: a number, a string, or a list of them; `id` and parameters beside them.",
    },
    "GenerateResponse": _object({"model_name": _TEXT, "model_version": _TEXT}),
    "V1Models": _object({"models": _array(_TEXT)}),
    "V1Model": _object({"name": _TEXT, "ready": _FLAG}),
    "V1Request": {
        "type": "object",
        "description": "Rows of the only input, or objects with a member for each input; or columns.",
        "oneOf": [_object({"instances": {"type": "array"}}), _object({"inputs": {}})],
    },
    "V1Predictions": _object({"predictions": {"type": ["array", "object", "number", "string", "boolean"]}}),
    "IndexRequest": _or_empty(_object({}, {"ready": _FLAG})),
    "LoadRequest": _or_empty(
        _object({}, {"parameters": _or_empty({"properties": {"config": _TEXT}, "patternProperties": {"^file:": _TEXT}})})
    ),
    "UnloadRequest": _or_empty(_object({}, {"parameters": _or_empty(_object({}, {"unload_dependents": _FLAG}))})),
    "LogSettings": _object(
        {
            "log_file": _TEXT,
            "log_info": _FLAG,
            "log_warning": _FLAG,
            "log_error": _FLAG,
            "log_verbose_level": _U64,
            "log_format": _TEXT,
        }
    ),
    "LogSettingsUpdate": _or_empty(
        _object(
            {},
            {
                **{key: {"type": ["boolean", "null"]} for key in ("log_info", "log_warning", "log_error")},
                "log_verbose_level": {**_U64, "type": ["integer", "null"]},
                "log_format": {"enum": ["default", "ISO8601", None]},
            },
        )
    ),
    "TraceSettings": _object(
        {"trace_level": _TRACE_LEVELS, "trace_rate": _TEXT, "trace_count": _TEXT, "log_frequency": _TEXT, "trace_file": _TEXT}
    ),
    "TraceSettingsUpdate": _or_empty(
        _object(
            {},
            {
                "trace_level": {"type": ["array", "null"], "items": _TEXT},
                **{name: {"type": ["string", "null"]} for name in ("trace_rate", "trace_count", "log_frequency")},
            },
        )
    ),
    "Recording": _object(
        {
            "state": {"type": "string", "enum": [state.value for state in RecordingState]},
            **dict.fromkeys(("directory", "file", "reason"), _TEXT),
            **dict.fromkeys(("requests", "bytes", "dropped", "unfinished"), _COUNT),
            "seconds": {"type": "number", "minimum": 0},
            "files": _array(_object({"name": _TEXT, "bytes": _COUNT, "modified_ms": _COUNT})),
        },
        _RECORDING_OPTIONS,
    ),
    "RecordingChange": {
        "oneOf": [
            {**_object({"action": {"const": "start"}}, _RECORDING_OPTIONS), "additionalProperties": False},
            {**_object({"action": {"const": "stop"}}), "additionalProperties": False},
        ]
    },
    "Regions": _array(_object({"name": _TEXT, "byte_size": _COUNT}, {"key": _TEXT, "offset": _COUNT, "device_id": _COUNT})),
    "SystemRegion": _object({"key": _TEXT, "byte_size": _COUNT}, {"offset": _COUNT}),
    "CudaRegion": _object({"raw_handle": _object({"b64": _TEXT}), "device_id": _COUNT, "byte_size": _COUNT}),
    "OpenApi": _object({"openapi": _TEXT, "paths": {"type": "object"}}),
}
"""The schemas by name. Of members that a server may add, the document says nothing."""
