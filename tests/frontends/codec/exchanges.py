"""The recorded exchanges with a real Triton, and a server made of nothing but the codec and an echo to answer them with."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec

from tpy.errors import TpyError
from tpy.frontends.http.codec import (
    HTTP_STATUS,
    choose_encoding,
    compress,
    decompress,
    encode_error,
    encode_infer,
    parse_header_length,
    parse_infer,
)
from tpy.messages import InferenceResponse, ModelDescription, Tensor, TensorDescription
from tpy.messages.datatypes import BY_WORD

RECORDING = Path(__file__).parent / "recorded" / "infer.json"
INPUT_BYTES_MAX = 64 * 1024 * 1024


class Exchange(msgspec.Struct, frozen=True):
    """One request and Triton's answer; `status` None when the server died of the request."""

    name: str
    model: str
    headers: dict[str, str]
    body: Any
    status: int | None
    answer_headers: dict[str, str]
    answer: Any

    def request_bytes(self) -> bytes:
        return as_bytes(self.body)

    def answer_bytes(self) -> bytes:
        return as_bytes(self.answer)

    def error(self) -> str | None:
        """Triton's error text, None for a success."""
        return json.loads(self.answer_bytes())["error"] if self.status != 200 else None


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


def as_bytes(recorded: Any) -> bytes:
    return recorded.encode() if isinstance(recorded, str) else base64.b64decode(recorded["base64"])


def load() -> tuple[dict[str, ModelDescription], list[Exchange]]:
    recording = json.loads(RECORDING.read_text())
    descriptions = {name: describe(name, model) for name, model in recording["models"].items()}
    return descriptions, msgspec.convert(recording["exchanges"], list[Exchange])


def describe(name: str, model: dict[str, Any]) -> ModelDescription:
    batch = [-1] if model["max_batch_size"] else []
    inputs = tuple(
        TensorDescription(name=tensor, datatype=BY_WORD[kind], shape=(*batch, *dims), optional=bool(model.get("optional", False)))
        for tensor, kind, dims in model["inputs"]
    )
    outputs = tuple(
        TensorDescription(
            name="OUT" + tensor.name[2:],
            datatype=tensor.datatype,
            shape=tensor.shape,
            labels=tuple(model.get("labels", ())),
        )
        for tensor in inputs
    )
    return ModelDescription(
        name=name,
        version=1,
        platform="python",
        max_batch_size=model["max_batch_size"],
        decoupled=False,
        inputs=inputs,
        outputs=outputs,
        input_by_name={tensor.name: tensor for tensor in inputs},
        output_by_name={tensor.name: tensor for tensor in outputs},
    )


def answer(exchange: Exchange, description: ModelDescription) -> Answer:
    """Returns the answer of a server with this codec and an echo as its model."""
    headers = {name.lower(): value for name, value in exchange.headers.items()}
    try:
        body = bytes(exchange.request_bytes())
        if "content-encoding" in headers:
            body = bytes(decompress(body, headers["content-encoding"], INPUT_BYTES_MAX))
        length = headers.get("inference-header-content-length")
        header_length = parse_header_length(length.encode() if length is not None else None, len(body))
        request, plan = parse_infer(body, header_length=header_length, description=description, version=None, received_ns=0)
        wanted = request.requested_outputs
        echoed = tuple(Tensor("OUT" + tensor.name[2:], tensor.datatype, tensor.array) for tensor in request.inputs)
        response = InferenceResponse(
            model_name=description.name,
            model_version=1,
            id=request.id,
            outputs=tuple(tensor for tensor in echoed if not wanted or tensor.name in wanted),
        )
        encoded = encode_infer(response, plan, description)
    except TpyError as error:
        return Answer(HTTP_STATUS[error.code], {"content-type": "application/json"}, encode_error(error))
    answer_headers = {"content-type": encoded.content_type}
    if encoded.json_length is not None:
        answer_headers["inference-header-content-length"] = str(encoded.json_length)
    encoding = choose_encoding(headers.get("accept-encoding", ""))
    if encoding != "identity":
        answer_headers["content-encoding"] = encoding
    return Answer(200, answer_headers, compress(encoded.parts, encoding))
