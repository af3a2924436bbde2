"""A small client of a running server, for the commands that ask one: HTTP, JSON and the binary tensor extension, nothing else."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import orjson

from tpy.errors import TpyError
from tpy.frontends.binary_tensor import read_binary, write_binary
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD

_HEADER = "Inference-Header-Content-Length"
_TIMEOUT_S = 60.0
_BINARY_OUTPUT = {"binary_data": True}

Parameter = str | int | float | bool


class ClientError(Exception):
    """The server could not be asked, or answered with an error. `str()` is one line for the user; `status` 0: no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """Talks to one server. Each call is one HTTP request; raises ClientError. `start` is the command that starts a server."""

    def __init__(self, host: str, port: int, *, start: str = "tpy serve DIRECTORY") -> None:
        self._host = host
        self._port = port
        self._start = start

    def get(self, path: str) -> object:
        """The document at `path`."""
        return orjson.loads(self._ask("GET", path, b"", {})[1])

    def post(self, path: str, body: bytes) -> object:
        """The answer to a document."""
        return orjson.loads(self._ask("POST", path, body, {})[1])

    def infer(
        self,
        model: str,
        inputs: Sequence[Tensor],
        *,
        outputs: Mapping[str, Mapping[str, Parameter]] | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> list[Tensor]:
        """The outputs of one request; `outputs` maps those that are wanted to their parameters, None is all of them."""
        blobs = [bytes(write_binary(tensor.array, tensor.datatype)) for tensor in inputs]
        head: dict[str, object] = {
            "inputs": [_described(tensor, len(blob)) for tensor, blob in zip(inputs, blobs, strict=True)],
            "parameters": {"binary_data_output": True, **(parameters or {})},
        }
        if outputs:
            head["outputs"] = [{"name": name, "parameters": {**_BINARY_OUTPUT, **extra}} for name, extra in outputs.items()]
        encoded = orjson.dumps(head)
        headers, body = self._ask("POST", f"{model_path(model)}/infer", encoded + b"".join(blobs), {_HEADER: str(len(encoded))})
        length = int(headers.get(_HEADER.lower(), len(body)))
        return _tensors(orjson.loads(body[:length]), memoryview(body)[length:])

    def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[Mapping[str, str], bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._host}:{self._port}"
            raise ClientError(f"no server at {where} ({error}); start one with: {self._start}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ClientError(f"HTTP {response.status}: {_message(answer)}", response.status)
        return {name.lower(): value for name, value in response.headers.items()}, answer


def model_path(model: str) -> str:
    """The path of a model; `model` may be NAME/versions/N."""
    return f"/v2/models/{quote(model, safe='/')}"


def _message(body: bytes) -> str:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    text = document.get("error") if isinstance(document, dict) else None
    return text if isinstance(text, str) else body.decode(errors="replace")


def _described(tensor: Tensor, size: int) -> dict[str, object]:
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.value,
        "shape": list(tensor.array.shape),
        "parameters": {"binary_data_size": size},
    }


def _tensors(document: Mapping[str, Sequence[Mapping[str, object]]], data: memoryview) -> list[Tensor]:
    """The outputs of an answer, all of them binary."""
    found: list[Tensor] = []
    for output in document["outputs"]:
        name, shape, size = output["name"], output["shape"], output["parameters"]
        datatype: DataType | None = BY_WORD.get(str(output["datatype"]))
        if datatype is None or not isinstance(shape, list) or not isinstance(size, dict):
            raise ClientError(f"the answer has an output that cannot be read: {output}")
        length = size["binary_data_size"]
        try:
            array = read_binary(data[:length], datatype, tuple(shape), tensor=str(name), model="", prefix="")
        except TpyError as error:
            raise ClientError(f"the answer has an output that cannot be read: {error.message}") from error
        found.append(Tensor(str(name), datatype, array))
        data = data[length:]
    return found
