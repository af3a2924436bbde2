"""Inference over REST: predict, classify, regress. What is made of a long body or of a large answer is made in threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.http import codec
from tpy.frontends.http.codec.document import load_document, shown
from tpy.frontends.http.codec.response import dump_json, is_large
from tpy.frontends.http.generate import answer_of
from tpy.frontends.http.infer import InferEndpoint, open_record, parse_version
from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.frontends.threads import run_in_thread
from tpy.limits.tensorflow_serving import INLINE_COMPRESS_BYTES_MAX, INLINE_LITERALS_ELEMENTS_MAX
from tpy.messages import InferenceRequest, Tensor, held_bytes
from tpy.services import held
from tpy_platforms.tensorflow_serving.answers import body_reply
from tpy_platforms.tensorflow_serving.examples import Labelled, classes_of, examples_of, examples_tensor, values_of
from tpy_platforms.tensorflow_serving.models import (
    CLASSIFY,
    PROTOCOL,
    REGRESS,
    ModelSpec,
    ServingSignature,
    resolve,
    signature_of,
)
from tpy_platforms.tensorflow_serving.rows import document_of, has_literals, tensors_of


class RequestForm(Protocol):
    """A request of one of the three kinds, from its document to its answer."""

    def read(self, document: Mapping[str, Any], signature: ServingSignature) -> Sequence[Tensor]:
        """The inputs. Raises InvalidArgument."""
        ...

    def write(self, outputs: Sequence[Tensor]) -> Iterable[bytes]:
        """The JSON of the answer, in pieces. Raises Internal."""
        ...


class _Predict:
    """Tensors in rows or columns."""

    def __init__(self) -> None:
        self._is_rows = True

    def read(self, document: Mapping[str, Any], signature: ServingSignature) -> Sequence[Tensor]:
        tensors, self._is_rows = tensors_of(document, signature)
        return tensors

    def write(self, outputs: Sequence[Tensor]) -> Iterable[bytes]:
        return document_of(outputs, is_rows=self._is_rows)


class _Examples:
    """Examples, to be classified or regressed."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._count = 0

    def read(self, document: Mapping[str, Any], signature: ServingSignature) -> Sequence[Tensor]:
        examples = examples_of(document)
        self._count = len(examples)
        return [examples_tensor(examples, signature, self._method)]

    def write(self, outputs: Sequence[Tensor]) -> Iterable[bytes]:
        results: Sequence[list[Labelled]] | Sequence[float]
        results = classes_of(outputs, self._count) if self._method == CLASSIFY else values_of(outputs, self._count)
        return (dump_json({"results": results}),)


class TensorFlowPredictionsApi:
    """The handlers of inference."""

    def __init__(self, endpoint: InferEndpoint) -> None:
        self._endpoint = endpoint

    async def predict(self, request: HttpRequest, *, model: str, version: str | None = None, label: str = "") -> HttpReply:
        """Answer named tensors. Raises TpyError."""
        return await self._answer(request, ModelSpec(name=model, version=parse_version(version), label=label), _Predict())

    async def classify(self, request: HttpRequest, *, model: str, version: str | None = None, label: str = "") -> HttpReply:
        """Answer labels with scores. Raises TpyError."""
        spec = ModelSpec(name=model, version=parse_version(version), label=label)
        return await self._answer(request, spec, _Examples(CLASSIFY))

    async def regress(self, request: HttpRequest, *, model: str, version: str | None = None, label: str = "") -> HttpReply:
        """Answer values. Raises TpyError."""
        spec = ModelSpec(name=model, version=parse_version(version), label=label)
        return await self._answer(request, spec, _Examples(REGRESS))

    async def _answer(self, request: HttpRequest, spec: ModelSpec, form: RequestForm) -> HttpReply:
        endpoint = self._endpoint
        services = endpoint.services
        received_ns = endpoint.clock.now_ns()
        request.record = open_record(services.observers, request, PROTOCOL, spec.name, received_ns)
        model = resolve(services.inference, spec)
        signature = signature_of(services.inference, model.description)
        if b"content-encoding" in request.fields or codec.is_heavy(request.body):
            with held(model):
                inputs = await run_in_thread(self._read, request, signature, form, limiter=endpoint.threads)
        else:
            inputs = self._read(request, signature, form)
        sent = InferenceRequest(
            model_name=spec.name,
            model_version=model.description.version if spec.label else spec.version,
            inputs=tuple(inputs),
            received_ns=received_ns,
            record=request.record,
        )
        request.body = b""
        request.submitted = True
        response = await answer_of(request.caller, model, sent, received_ns)
        outputs = signature.outputs_of(response)
        if is_large(outputs) or is_slow(outputs) or (b"accept-encoding" in request.fields and _is_long(outputs)):
            return await run_in_thread(_reply, form, outputs, request, limiter=endpoint.threads)
        return _reply(form, outputs, request)

    def _read(self, request: HttpRequest, signature: ServingSignature, form: RequestForm) -> Sequence[Tensor]:
        body = request.body
        encoding = request.fields.get(b"content-encoding")
        if encoding is not None:
            body = codec.decompress(body, encoding.decode("latin-1"), self._endpoint.max_input_size)
        document = load_document(body)
        if type(document) is not dict:
            raise InvalidArgument(f"Request body is expected to be an object, got {shown(document)}")
        members = cast("dict[str, Any]", document)
        wanted = members.get("signature_name", "")
        if type(wanted) is not str:
            raise InvalidArgument(f"'signature_name' key must be a string value, got {echo(shown(wanted))}")
        signature.require(wanted)
        return form.read(members, signature)


def _is_long(outputs: Sequence[Tensor]) -> bool:
    """Returns True if compressing these outputs could hold up the loop."""
    return held_bytes(outputs, INLINE_COMPRESS_BYTES_MAX + 1) > INLINE_COMPRESS_BYTES_MAX


def is_slow(outputs: Sequence[Tensor]) -> bool:
    """Returns True if outputs have more NaN and infinities around than are written on the loop."""
    return any(output.array.size > INLINE_LITERALS_ELEMENTS_MAX and has_literals(output) for output in outputs)


def _reply(form: RequestForm, outputs: Sequence[Tensor], request: HttpRequest) -> HttpReply:
    return body_reply(form.write(outputs), request)
