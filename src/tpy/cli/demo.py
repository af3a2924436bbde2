"""`tpy demo FILE`: ask a running demo server (`make serve`) what a file is, and what is on it if it is a picture.

A client like any other: HTTP, the binary tensor extension, nothing of the server's own.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_HEADER = "Inference-Header-Content-Length"
_TIMEOUT_S = 60.0
_TOP = 3


class DemoError(Exception):
    """The server could not be asked, or answered with an error. `str()` is one line for the user."""


class _Tensor(msgspec.Struct, frozen=True):
    """A tensor as bytes on the wire."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: bytes


class _Output(msgspec.Struct, frozen=True):
    """An output in the JSON part of an answer; `data` is there for text outputs only."""

    datatype: str
    shape: list[int]
    data: list[str] = []


class _Reply(msgspec.Struct, frozen=True):
    """The JSON part of an answer."""

    outputs: list[_Output]


class Guess(msgspec.Struct, frozen=True):
    """A label and its probability."""

    label: str
    probability: float


class DemoClient:
    """Talks to one server. Each call is one HTTP request; raises DemoError."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def features(self, model: str, input_name: str, output_name: str, content: bytes) -> _Tensor:
        """The tensor that a preprocessing model makes of a file."""
        element = len(content).to_bytes(4, "little") + content
        reply, blob = self._infer(
            model, _Tensor(input_name, "BYTES", (1, 1), element), {"name": output_name, "parameters": {"binary_data": True}}
        )
        output = reply.outputs[0]
        return _Tensor(output_name, output.datatype, output.shape, blob)

    def classify(self, model: str, tensor: _Tensor, output_name: str, count: int) -> list[Guess]:
        """The `count` likeliest classes, best first."""
        output = {"name": output_name, "parameters": {"classification": count, "binary_data": False}}
        reply, _ = self._infer(model, tensor, output)
        rows = [row.split(":") for row in reply.outputs[0].data]
        return [Guess(label=row[2] if len(row) > 2 else row[1], probability=float(row[0])) for row in rows]

    def _infer(self, model: str, tensor: _Tensor, output: Mapping[str, object]) -> tuple[_Reply, bytes]:
        head = {
            "inputs": [
                {
                    "name": tensor.name,
                    "datatype": tensor.datatype,
                    "shape": list(tensor.shape),
                    "parameters": {"binary_data_size": len(tensor.data)},
                }
            ],
            "outputs": [output],
        }
        encoded = json.dumps(head).encode()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", encoded + tensor.data, {_HEADER: str(len(encoded))})
            response = connection.getresponse()
            body = response.read()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise DemoError(f"no server at {where} ({error}); start one with: make serve") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise DemoError(f"{model}: HTTP {response.status}: {body.decode(errors='replace')}")
        length = int(response.headers.get(_HEADER, len(body)))
        return msgspec.json.decode(body[:length], type=_Reply), body[length:]


def describe_file(client: DemoClient, path: Path) -> list[str]:
    """Lines that say what the file is."""
    content = path.read_bytes()
    tensor = client.features("file_features", "FILE", "bytes", content)
    kind = client.classify("magika", tensor, "target_label", 1)[0]
    lines = [f"{path.name}: {kind.label} ({kind.probability:.1%} sure)"]
    if kind.label in {"png", "jpeg", "gif", "bmp", "webp", "tiff"}:
        tensor = client.features("image_features", "IMAGE", "INPUT", content)
        guesses = client.classify("efficientnet_lite0", tensor, "PROBABILITIES", _TOP)
        lines.extend(f"  {guess.probability:6.1%}  {guess.label}" for guess in guesses)
    return lines
