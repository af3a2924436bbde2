"""The routes of the HTTP port in words: an OpenAPI document, and a page of it that needs nothing from elsewhere.

A fuzzer that reads the document checks it against a running server (tests/e2e/test_openapi.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from html import escape
from typing import Final, NamedTuple

import orjson

from tpy import __version__
from tpy.frontends.http.openapi_schemas import SCHEMAS, Schema, reference

_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_EVENTS: Final = "text/event-stream"


class Operation(NamedTuple):
    """A method of a path. `body` is an example of what is sent, "" for nothing; `sent` and `answer` are names of schemas; `kind`
    is the content type of the answer; `errors` are statuses that only some operations have; `query` are the names
    of counts in the query, none of which is needed."""

    tag: str
    method: str
    path: str
    summary: str
    body: str = ""
    sent: str = ""
    answer: str = ""
    kind: str = _JSON
    errors: tuple[int, ...] = ()
    query: tuple[str, ...] = ()


_INFER: Final = '{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}'
_GENERATE: Final = '{"X": [5.1, 3.5, 1.4, 0.2]}'
_ROWS: Final = '{"instances": [[5.1, 3.5, 1.4, 0.2]]}'
_SYSTEM_REGION: Final = '{"key": "/region", "offset": 0, "byte_size": 4096}'
_CUDA_REGION: Final = '{"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4096}'
_VERSION: Final = "/versions/{version}"
_EXECUTION_ERRORS: Final = (429, 500, 503)
"""A model that fails, is full or is not ready."""
_LOAD_ERRORS: Final = (500, 501, 503)
"""A model that fails to load, a repository that is named, and another model-control mode than `explicit`."""


def _of_a_model() -> Iterable[Operation]:
    for version, note in (("", ""), (_VERSION, ", of one version")):
        model = f"/v2/models/{{model}}{version}"
        yield Operation(
            "Inference",
            "POST",
            f"{model}/infer",
            f"Inference: tensors in, tensors out{note}",
            _INFER,
            "InferRequest",
            "InferResponse",
            errors=_EXECUTION_ERRORS,
        )
        yield Operation(
            "Inference",
            "POST",
            f"{model}/generate",
            f"Inference with plain JSON{note}",
            _GENERATE,
            "GenerateRequest",
            "GenerateResponse",
            errors=_EXECUTION_ERRORS,
            query=("rows",),
        )
        yield Operation(
            "Inference",
            "POST",
            f"{model}/generate_stream",
            f"The same, responses as server-sent events{note}",
            _GENERATE,
            "GenerateRequest",
            kind=_EVENTS,
            errors=_EXECUTION_ERRORS,
            query=("rows",),
        )
        yield Operation("Models", "GET", model, f"Name, versions, inputs and outputs{note}", answer="ModelMetadata")
        yield Operation("Models", "GET", f"{model}/config", f"The configuration in force{note}", answer="ModelConfig")
        yield Operation("Models", "GET", f"{model}/labels", f"The labels of outputs{note}", answer="Labels")
        yield Operation("Models", "GET", f"{model}/stats", f"Counts and times of requests{note}", answer="Statistics")
        yield Operation(
            "Models", "GET", f"{model}/explain", f"What requests wait for now, and what to change{note}", answer="Explanations"
        )
        yield Operation(
            "Models", "GET", f"{model}/graph", f"The graph of an ONNX model{note}", answer="ModelGraph", errors=(500, 501)
        )
        yield Operation("Health", "GET", f"{model}/ready", f"200 when the model can be asked{note}", kind=_TEXT)


def _of_v1() -> Iterable[Operation]:
    tag, model = "KServe v1", "/v1/models/{model}"
    yield Operation(tag, "GET", "/v1/models", "The names of the models that are ready", answer="V1Models")
    yield Operation(tag, "GET", model, "Whether a model is ready", answer="V1Model", errors=(503,))
    yield Operation(
        tag,
        "POST",
        f"{model}:predict",
        "Inference: rows in, rows out",
        _ROWS,
        "V1Request",
        "V1Predictions",
        errors=_EXECUTION_ERRORS,
    )


def _of_the_repository() -> Iterable[Operation]:
    tag = "Model repository"
    for repository in ("", "/{repository}"):
        prefix = f"/v2/repository{repository}"
        model = f"{prefix}/models/{{model}}"
        index = "Every model with its state, and why it is not ready"
        yield Operation(tag, "POST", f"{prefix}/index", index, "{}", "IndexRequest", "Index")
        yield Operation(tag, "POST", f"{model}/load", "Load a model, or load it again", "{}", "LoadRequest", errors=_LOAD_ERRORS)
        check = "What is wrong with a model's configuration, or with another one for it; nothing is loaded"
        yield Operation(tag, "POST", f"{model}/check", check, "{}", "CheckRequest", "ConfigCheck", errors=(501,))
        yield Operation(tag, "POST", f"{model}/unload", "Unload a model", "{}", "UnloadRequest", errors=_LOAD_ERRORS)
        rollout = "The rollout of a model's new version"
        yield Operation(tag, "GET", f"{model}/rollout", rollout, answer="RolloutStatus", errors=(404, 501))
        change = (
            "Change the rollout: `promote` the new version, `roll_back` to the old one, or `start`, also by a plan given here"
        )
        example = '{"action": "roll_back"}'
        yield Operation(tag, "POST", f"{model}/rollout", change, example, "RolloutAction", "RolloutStatus", errors=(404, 501))


def _of_regions() -> Iterable[Operation]:
    for kind, words, body, schema in (
        ("systemsharedmemory", "system shared memory", _SYSTEM_REGION, "SystemRegion"),
        ("cudasharedmemory", "CUDA shared memory", _CUDA_REGION, "CudaRegion"),
    ):
        prefix = f"/v2/{kind}"
        tag = "Shared memory"
        region = f"{prefix}/region/{{region}}"
        errors = (500, 501)
        yield Operation(tag, "GET", f"{prefix}/status", f"Regions of {words}", answer="Regions")
        yield Operation(tag, "GET", f"{region}/status", f"One region of {words}", answer="Regions", errors=(404,))
        yield Operation(tag, "POST", f"{prefix}/register", "Refused: a region has a name", body, schema, errors=errors)
        yield Operation(tag, "POST", f"{region}/register", f"Register a region of {words}", body, schema, errors=errors)
        yield Operation(tag, "POST", f"{region}/unregister", f"Unregister a region of {words}", errors=errors)
        yield Operation(tag, "POST", f"{prefix}/unregister", f"Unregister all regions of {words}", errors=errors)


def _of_settings() -> Iterable[Operation]:
    log, trace = ("LogSettingsUpdate", "LogSettings"), ("TraceSettingsUpdate", "TraceSettings")
    yield Operation("Settings", "GET", "/v2/logging", "The settings of the log", answer="LogSettings")
    yield Operation(
        "Settings", "POST", "/v2/logging", "Change settings of the log", '{"log_verbose_level": 1}', *log, errors=(501, 503)
    )
    recording = "RecordingChange", "Recording"
    yield Operation(
        "Settings", "GET", "/v2/recording", "The recording of requests that is made, or the last one", answer="Recording"
    )
    yield Operation(
        "Settings",
        "POST",
        "/v2/recording",
        "Start or stop a recording of requests",
        '{"action": "stop"}',
        *recording,
        errors=(500, 501),
    )
    yield Operation(
        "Settings", "GET", "/v2/logging/tail", "The log's newest lines", answer="LogLines", errors=(501,), query=("after",)
    )
    yield Operation(
        "Settings", "GET", "/v2/trace/recent", "The newest traces", answer="RecentTraces", errors=(501,), query=("after",)
    )
    for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting"):
        yield Operation("Settings", "GET", path, "The trace settings", answer="TraceSettings")
        yield Operation("Settings", "POST", path, "Change trace settings", "{}", *trace, errors=(501,))


OPERATIONS: Final = (
    Operation("Server", "GET", "/", "This server: its models and where to go on; a page for browsers", answer="Links"),
    Operation("Server", "GET", "/v2", "Name, version and extensions of the server", answer="ServerMetadata"),
    Operation("Server", "GET", "/docs", "This page", kind=_TEXT),
    Operation("Server", "GET", "/openapi.json", "This page as an OpenAPI document", answer="OpenApi"),
    Operation("Server", "GET", "/v2/openapi.json", "The same, for clients that know the path of the API alone", answer="OpenApi"),
    Operation("Health", "GET", "/v2/health/live", "200 when the server runs", kind=_TEXT),
    Operation("Health", "GET", "/v2/health/ready", "200 when the models of the start are ready", kind=_TEXT),
    Operation("Models", "GET", "/v2/models", "Every model with its state, and why it is not ready", answer="Models"),
    Operation(
        "Models",
        "GET",
        "/v2/overview",
        "Every model with its state and counters; as server-sent events for who accepts text/event-stream",
        answer="Overview",
        errors=(503,),
    ),
    Operation("Models", "GET", "/v2/models/stats", "Counts and times of requests, of all models", answer="Statistics"),
    *_of_a_model(),
    *_of_v1(),
    *_of_the_repository(),
    *_of_settings(),
    *_of_regions(),
)
"""Every route of create_app; a test compares the two."""

_COMMON_ERRORS: Final = {
    400: "the request is wrong, or names what is not there",
    401: "the credentials are wrong or missing",
    403: "refused by the rules of access",
    404: "there is no such model or version",
    413: "the request is larger than allowed",
    429: "too many requests",
    500: "it failed in the server or in a model",
    501: "not supported, or switched off",
    503: "not ready, full, or not allowed now",
}
_OF_EVERY_OPERATION: Final = (400, 401, 403)
_NEEDED: Final = (
    "InferRequest",
    "V1Request",
    "GenerateRequest",
    "LogSettingsUpdate",
    "TraceSettingsUpdate",
    "RecordingChange",
    "SystemRegion",
    "CudaRegion",
)
"""Bodies that must be there."""
_PATH_VALUES: Final[dict[str, Schema]] = {
    "model": {"type": "string", "minLength": 1},
    "repository": {"type": "string", "minLength": 1},
    "region": {"type": "string", "minLength": 1},
    "version": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
}


@cache
def openapi_document() -> bytes:
    """The OpenAPI 3.1 document."""
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "tpy",
            "version": __version__,
            "description": "The KServe v2 inference protocol with Triton's extensions.",
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _described(operation: Operation) -> dict[str, object]:
    entry: dict[str, object] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _identifier(operation),
        "responses": {"200": _answer(operation), **_errors(operation)},
    }
    names = re.findall(r"{(\w+)}", operation.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": _PATH_VALUES[name]} for name in names]
    parameters += [{"name": name, "in": "query", "schema": {"type": "integer", "minimum": 0}} for name in operation.query]
    if parameters:
        entry["parameters"] = parameters
    if operation.body:
        entry["requestBody"] = {
            "required": operation.sent in _NEEDED,
            "content": {_JSON: {"schema": reference(operation.sent), "example": orjson.loads(operation.body)}},
        }
    return entry


def _answer(operation: Operation) -> Schema:
    if operation.answer:
        return {"description": "done", "content": {_JSON: {"schema": reference(operation.answer)}}}
    if operation.kind != _JSON:
        return {"description": "done", "content": {operation.kind: {"schema": {"type": "string"}}}}
    return {"description": "done, without a body"}


def _errors(operation: Operation) -> dict[str, Schema]:
    statuses = {*_OF_EVERY_OPERATION, *operation.errors}
    if "{model}" in operation.path:
        statuses.add(404)
    if operation.body:
        statuses.add(413)
    content = {_JSON: {"schema": reference("Error")}}
    if operation.tag == "Health":
        content = {_TEXT: {"schema": {"type": "string"}}, **content}
    return {str(status): {"description": _COMMON_ERRORS[status], "content": content} for status in sorted(statuses)}


def _identifier(operation: Operation) -> str:
    words = re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}")
    return words.strip("_")


@cache
def operations_html() -> str:
    """The routes as HTML: a heading for each tag, an example with curl for each operation."""
    parts: list[str] = []
    for tag in dict.fromkeys(operation.tag for operation in OPERATIONS):
        parts.append(f"<h2>{escape(tag)}</h2>")
        for operation in OPERATIONS:
            if operation.tag == tag:
                parts.append(
                    f"<details><summary><b>{operation.method}</b> <code>{escape(operation.path)}</code> "
                    f"{escape(operation.summary)}</summary><pre>{escape(_curl(operation))}</pre></details>"
                )
    return "\n".join(parts)


@cache
def operations_text() -> str:
    """The routes as text: method, path and what it is for, below the name of each tag; then examples of inference."""
    parts = []
    for tag in dict.fromkeys(operation.tag for operation in OPERATIONS):
        parts.append(f"{tag}\n")
        parts += (f"  {each.method:4} {each.path:58} {each.summary}\n" for each in OPERATIONS if each.tag == tag)
    parts.append("\nExamples\n")
    parts += (f"  {_curl(each)}\n" for each in OPERATIONS if each.tag == "Inference" and _VERSION not in each.path)
    return "".join(parts)


def _curl(operation: Operation) -> str:
    path = operation.path.replace("{model}", "iris").replace("{version}", "1").replace("{region}", "mine")
    sent = f" -d '{operation.body}'" if operation.body else ""
    return f"curl -s localhost:8000{path}{sent}"
