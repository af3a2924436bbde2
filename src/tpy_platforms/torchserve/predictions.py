"""Inference: a body of any kind to a model that `tpy import` has made of an archive, and what its handler answers."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, Unsupported
from tpy.frontends.access import CREDENTIAL_NAMES
from tpy.frontends.http.generate import answer_of
from tpy.frontends.http.infer import InferEndpoint, open_record
from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.messages import DataType, InferenceRequest, InferenceResponse, ModelDescription, Tensor
from tpy_platforms.torchserve.answers import HandlerFailed, UnknownModel, WorkflowFailed, WorkflowNotFound
from tpy_platforms.torchserve.versions import resolve

_INPUTS: Final = frozenset({"body", "headers"})
_OUTPUTS: Final = ("response", "status", "response_headers")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_OF_THE_CONNECTION: Final = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"})

_STATUS_MIN, _STATUS_MAX = 200, 599


class TorchServePredictionsApi:
    """The handlers of inference. `secret` are headers that open restricted APIs, in lower case: no model is told them."""

    def __init__(self, endpoint: InferEndpoint, *, secret: Collection[str]) -> None:
        self._endpoint = endpoint
        self._secret = frozenset(secret)

    async def predict(self, request: HttpRequest, *, model: str, release: str | None = None) -> HttpReply:
        """Run the handler. Raises TpyError."""
        endpoint = self._endpoint
        received_ns = endpoint.clock.now_ns()
        request.record = open_record(endpoint.services.observers, request, "torchserve", model, received_ns)
        if request.fields.get(b"content-encoding", b"identity") not in (b"identity", b""):
            raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
        try:
            resolved = resolve(endpoint.services.inference, model, release)
        except NotFound as error:
            raise error if release is not None else UnknownModel(f"Model not found: {echo(model)}") from None
        _require_imported(resolved.description)
        sent = InferenceRequest(
            model_name=model,
            inputs=(_bytes_tensor("body", bytes(request.body)), _bytes_tensor("headers", self._headers(request))),
            requested_outputs=_OUTPUTS,
            received_ns=received_ns,
            record=request.record,
        )
        request.body = b""
        request.submitted = True
        return _reply(await answer_of(request.caller, resolved, sent, endpoint.clock.now_ns()))

    async def run_workflow(self, request: HttpRequest, *, model: str) -> HttpReply:
        """Run the nodes of a workflow, which is an ensemble. Raises TpyError."""
        try:
            return await self.predict(request, model=model)
        except UnknownModel:
            raise WorkflowNotFound(f"Workflow not found: {echo(model)}") from None
        except HandlerFailed as failed:
            raise WorkflowFailed(failed.message) from None

    def _headers(self, request: HttpRequest) -> bytes:
        """The headers that a handler is told."""
        hidden = self._secret if request.caller is None else self._secret | CREDENTIAL_NAMES
        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.fields.items()}
        return orjson.dumps({name: value for name, value in told.items() if name not in hidden})


def _require_imported(description: ModelDescription) -> None:
    """Raise Unsupported for a model that does not take requests of TorchServe."""
    if not (
        description.input_by_name.keys() >= _INPUTS and description.output_by_name.keys() >= set(_OUTPUTS) and description.batches
    ):
        raise Unsupported(
            f"model '{description.name}' was not made by tpy import of a TorchServe archive, so it has no inputs 'body' and "
            "'headers': ask it over the HTTP or gRPC port"
        )


def _bytes_tensor(name: str, content: bytes) -> Tensor:
    array: np.ndarray[Any, Any] = np.empty((1, 1), object)
    array[0, 0] = content
    return Tensor(name, DataType.BYTES, array)


def _reply(response: InferenceResponse) -> HttpReply:
    """The answer of the handler as HTTP. Raises HandlerFailed."""
    if response.error is not None:
        raise response.error if response.refused else HandlerFailed(response.error)
    body, status, headers = (tensor.array.flat[0] for tensor in _in_order(response))
    code = int(status)
    fields = {name: value for name, value in _read_headers(headers).items() if _can_be_sent(name, value)}
    kind = next((fields.pop(name) for name in list(fields) if name.lower() == "content-type"), "application/octet-stream")
    return HttpReply(
        status=code if _STATUS_MIN <= code <= _STATUS_MAX else 500,
        content_type=kind,
        parts=(body,),
        content_length=len(body),
        headers=tuple(fields.items()),
    )


def _in_order(response: InferenceResponse) -> list[Tensor]:
    found = {tensor.name: tensor for tensor in response.outputs}
    return [found[name] for name in _OUTPUTS]


_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


def _read_headers(text: bytes) -> dict[str, str]:
    try:
        return _decode_headers(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _can_be_sent(name: str, value: str) -> bool:
    """Returns True for a header that neither ends the head of the answer nor says how long its body is."""
    return (
        _HEADER_NAME.fullmatch(name) is not None
        and _HEADER_VALUE.fullmatch(value) is not None
        and name.lower() not in _OF_THE_CONNECTION
    )
