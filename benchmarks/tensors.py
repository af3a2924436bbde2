"""Inference requests over HTTP, JSON and binary, and whether what came back is what was sent."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from benchmarks.http_exchange import HttpRequest
from benchmarks.servers.process import HOST

_HEADER_LENGTH = "Inference-Header-Content-Length"
_TIMEOUT_S = 60

FloatArray = npt.NDArray[np.float32]


class WrongAnswer(Exception):
    """A server answered a request with an error or with other values than expected."""


def json_request(model: str, name: str, values: FloatArray) -> HttpRequest:
    """One FP32 input, and no word about outputs: all of them come back as JSON."""
    entry = {"name": name, "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}
    body = json.dumps({"inputs": [entry]}, separators=(",", ":")).encode()
    return HttpRequest(path=_path(model), headers={"Content-Type": "application/json"}, body=body)


def binary_request(model: str, name: str, values: FloatArray, parameters: Mapping[str, bool | int] | None = None) -> HttpRequest:
    """One FP32 input behind the JSON; the outputs come back binary too. `parameters` are the request's others."""
    return binary_request_of(model, {name: values}, parameters)


def binary_request_of(
    model: str, tensors: Mapping[str, FloatArray], parameters: Mapping[str, bool | int] | None = None
) -> HttpRequest:
    """The same with several FP32 inputs, by name."""
    entries = [
        {
            "name": name,
            "shape": list(values.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": values.nbytes},
        }
        for name, values in tensors.items()
    ]
    asked = {"inputs": entries, "parameters": {"binary_data_output": True, **(parameters or {})}}
    head = json.dumps(asked, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(len(head))}
    return HttpRequest(path=_path(model), headers=headers, body=head + b"".join(values.tobytes() for values in tensors.values()))


def _path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def ask(port: int, request: HttpRequest) -> FloatArray:
    """Send `request` once and return its first output, flat. Raises WrongAnswer for any status but 200."""
    body, length = _answer(port, request)
    if length is not None:
        return np.frombuffer(body, np.float32, offset=int(length))
    return np.array(json.loads(body)["outputs"][0]["data"], np.float32).ravel()


def check_copies(port: int, request: HttpRequest) -> None:
    """Raises WrongAnswer unless the outputs of the server are, in this order, what `request` has as inputs in its JSON."""
    body, _ = _answer(port, request)
    sent = [tensor["data"] for tensor in json.loads(request.body)["inputs"]]
    if [tensor["data"] for tensor in json.loads(body)["outputs"]] != sent:
        raise WrongAnswer(f"{request.path}: the outputs are not the inputs")


def check_answer(port: int, request: HttpRequest, expected: object) -> None:
    """Raises WrongAnswer unless the server's answer is JSON of this value."""
    body, _ = _answer(port, request)
    if json.loads(body) != expected:
        raise WrongAnswer(f"{request.path}: expected {expected}, got {body[:500].decode(errors='replace')}")


def _answer(port: int, request: HttpRequest) -> tuple[bytes, str | None]:
    """Returns the body and, where it has binary tensors, the length of the JSON before them."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", request.path, request.body, request.headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise WrongAnswer(f"{request.path}: status {response.status}, {body[:500].decode(errors='replace')}")
        return body, response.getheader(_HEADER_LENGTH)
    finally:
        connection.close()


def check_identity(port: int, request: HttpRequest, values: FloatArray) -> None:
    """Raises WrongAnswer unless the server gives `values` back."""
    answer = ask(port, request)
    if not np.array_equal(answer, values.ravel()):
        raise WrongAnswer(f"{request.path}: sent {values.size} values, got other {answer.size} back")
