"""The routes of the HTTP port in words: an OpenAPI document, and a page of it that needs nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from html import escape
from typing import Final, NamedTuple

import orjson

from tpy import __version__


class Operation(NamedTuple):
    """A method of a path. `body` is an example of what is sent, "" for nothing."""

    tag: str
    method: str
    path: str
    summary: str
    body: str = ""


_INFER: Final = '{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}'
_GENERATE: Final = '{"X": [5.1, 3.5, 1.4, 0.2]}'
_REGION: Final = '{"key": "/region", "offset": 0, "byte_size": 4096}'
_VERSION: Final = "/versions/{version}"


def _of_a_model() -> Iterable[Operation]:
    for version, note in (("", ""), (_VERSION, ", of one version")):
        model = f"/v2/models/{{model}}{version}"
        yield Operation("Inference", "POST", f"{model}/infer", f"Inference: tensors in, tensors out{note}", _INFER)
        yield Operation("Inference", "POST", f"{model}/generate", f"Inference with plain JSON{note}", _GENERATE)
        yield Operation(
            "Inference", "POST", f"{model}/generate_stream", f"The same, responses as server-sent events{note}", _GENERATE
        )
        yield Operation("Models", "GET", model, f"Name, versions, inputs and outputs{note}")
        yield Operation("Models", "GET", f"{model}/config", f"The configuration in force{note}")
        yield Operation("Models", "GET", f"{model}/stats", f"Counts and times of requests{note}")
        yield Operation("Health", "GET", f"{model}/ready", f"200 when the model can be asked{note}")


def _of_the_repository() -> Iterable[Operation]:
    for repository in ("", "/{repository}"):
        prefix = f"/v2/repository{repository}"
        yield Operation(
            "Model repository", "POST", f"{prefix}/index", "Every model with its state, and why it is not ready", "{}"
        )
        yield Operation("Model repository", "POST", f"{prefix}/models/{{model}}/load", "Load a model, or load it again", "{}")
        yield Operation("Model repository", "POST", f"{prefix}/models/{{model}}/unload", "Unload a model", "{}")


def _of_regions() -> Iterable[Operation]:
    for kind, words in (("systemsharedmemory", "system shared memory"), ("cudasharedmemory", "CUDA shared memory")):
        prefix = f"/v2/{kind}"
        tag = "Shared memory"
        yield Operation(tag, "GET", f"{prefix}/status", f"Regions of {words}")
        yield Operation(tag, "GET", f"{prefix}/region/{{region}}/status", f"One region of {words}")
        yield Operation(tag, "POST", f"{prefix}/register", "Refused: a region has a name", _REGION)
        yield Operation(tag, "POST", f"{prefix}/region/{{region}}/register", f"Register a region of {words}", _REGION)
        yield Operation(tag, "POST", f"{prefix}/region/{{region}}/unregister", f"Unregister a region of {words}", "{}")
        yield Operation(tag, "POST", f"{prefix}/unregister", f"Unregister all regions of {words}", "{}")


OPERATIONS: Final = (
    Operation("Server", "GET", "/", "This server: its models and where to go on; a page for browsers"),
    Operation("Server", "GET", "/v2", "Name, version and extensions of the server"),
    Operation("Server", "GET", "/docs", "This page"),
    Operation("Server", "GET", "/openapi.json", "This page as an OpenAPI document"),
    Operation("Server", "GET", "/v2/openapi.json", "The same, for clients that know the path of the API alone"),
    Operation("Health", "GET", "/v2/health/live", "200 when the server runs"),
    Operation("Health", "GET", "/v2/health/ready", "200 when the models of the start are ready"),
    Operation("Models", "GET", "/v2/models", "Every model with its state, and why it is not ready"),
    Operation("Models", "GET", "/v2/models/stats", "Counts and times of requests, of all models"),
    *_of_a_model(),
    *_of_the_repository(),
    Operation("Settings", "GET", "/v2/logging", "The settings of the log"),
    Operation("Settings", "POST", "/v2/logging", "Change settings of the log", '{"log_verbose_level": 1}'),
    *(
        Operation("Settings", method, f"{path}/trace/setting", summary, body)
        for path in ("/v2", "/v2/models/{model}")
        for method, summary, body in (("GET", "The trace settings", ""), ("POST", "Change trace settings", "{}"))
    ),
    *_of_regions(),
)
"""Every route of create_app; a test compares the two."""


@cache
def openapi_document() -> bytes:
    """The OpenAPI 3.1 document."""
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        entry: dict[str, object] = {
            "tags": [operation.tag],
            "summary": operation.summary,
            "operationId": _identifier(operation),
            "responses": {
                "200": {"description": "done"},
                "default": {
                    "description": "an error",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
            },
        }
        names = re.findall(r"{(\w+)}", operation.path)
        if names:
            entry["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if name == "version" else "string"}}
                for name in names
            ]
        if operation.body:
            example = orjson.loads(operation.body)
            entry["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}, "example": example}}}
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "tpy",
            "version": __version__,
            "description": "The KServe v2 inference protocol with Triton's extensions.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": error}},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


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
