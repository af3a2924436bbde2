"""The inference route: one call from the complete request to the complete reply, for every transport.

    begin_nowait    checks, decodes and submits the request; a refusal is an answer like any other
    answered        the owner is told, on the loop thread: the engine has answered (or the request was refused)
    render_now      the reply

What may take long (large JSON, many BYTES elements, compression) is done in threads: `finish` goes on where `begin_nowait` leaves
off, and `render_in_thread` where `render_now` gives nothing. Everything else happens where it is called, without a separate task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy import limits, unexpected
from tpy.clock import Clock
from tpy.echo import echo
from tpy.errors import ErrorCode, InvalidArgument, InvariantViolation, TooManyRequests, TpyError, Unsupported
from tpy.frontends import load_report
from tpy.frontends.access import INFER
from tpy.frontends.core.budget import ByteBudget
from tpy.frontends.http import codec
from tpy.frontends.http.access import HeaderPolicy
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, error_reply
from tpy.frontends.shared_memory import LongCopy, TensorResolver
from tpy.frontends.threads import forget_trace, run_in_thread
from tpy.messages import DataType, InferenceRequest, InferenceResponse, ModelDescription, RequestRecord, content_bytes, held_bytes
from tpy.observers import RequestObservers
from tpy.services import RequestHandle, ResolvedModel, Services

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

_log = logging.getLogger(__name__)

_VERSION_MAX = 2**63 - 1
_CLASS_COST = 8
"""The cost of ordering and writing an element, in elements that are only written."""

_NO_PLAN = codec.HttpOutputPlan()
_JSON_LENGTH = "Inference-Header-Content-Length"
_TRACE_FIELDS = (b"traceparent", b"tracestate", b"user-agent")
"""The headers that observers of requests are told."""
_SUPPORTED_ENCODINGS = (("Accept-Encoding", "gzip, deflate"),)


def parse_version(text: str | None) -> int | None:
    """The version of a URL (digits). Raises InvalidArgument for one that no folder can have."""
    if text is None:
        return None
    if len(text) > len(str(_VERSION_MAX)) or int(text) > _VERSION_MAX:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{echo(text)}' (details: stol), "
            "version should be an integral value > 0"
        )
    return int(text)


def open_record(
    observers: RequestObservers, request: HttpRequest, protocol: str, model: str, received_ns: int
) -> RequestRecord | None:
    """A record of an inference request over HTTP; None when nobody observes."""
    active = observers.active
    if not active:
        return None
    headers = {name.decode(): request.fields[name].decode("latin-1") for name in _TRACE_FIELDS if name in request.fields}
    return observers.open(
        protocol,
        model=model,
        peer=request.peer,
        headers=headers,
        begun_ns=request.begun_ns,
        received_ns=received_ns,
        request_bytes=request.sent_bytes or len(request.body),
        active=active,
    )


def finish_record(record: RequestRecord, reply: HttpReply, now_ns: int) -> None:
    """The request was answered with `reply`."""
    if reply.status < HTTPStatus.BAD_REQUEST or record.status not in ("", "OK"):
        record.finish(now_ns, response_bytes=reply.content_length)
    else:  # refused before it came to the model, or its answer could not be written
        text = b"".join(reply.parts).decode(errors="replace")
        record.finish(now_ns, HTTPStatus(reply.status).phrase, text, response_bytes=reply.content_length)


def finish_records(request: HttpRequest, reply: HttpReply, now_ns: int) -> None:
    """The same for a request that may have several records: the bytes of the answer are in the line of the first."""
    if request.record is not None:
        finish_record(request.record, reply, now_ns)
    for record in request.further_records:
        finish_record(record, msgspec.structs.replace(reply, content_length=0), now_ns)


def unexpected_error(path: str) -> TpyError:
    """The error for the exception being handled."""
    return unexpected.unexpected_error("HTTP request failed unexpectedly", path=path)


def unexpected_error_reply(path: str) -> HttpReply:
    """The answer for the exception being handled: 500."""
    return error_reply(unexpected_error(path))


async def infer(endpoint: InferEndpoint, request: HttpRequest, model: str, version: str | None, *, protocol: str) -> HttpReply:
    """Returns the reply to an inference request, for callers with a task to wait in. Cancelling it cancels the request. Its
    record is finished by whoever sends the reply."""
    request.received_ns = endpoint.clock.now_ns()
    request.record = open_record(endpoint.services.observers, request, protocol, model, request.received_ns)
    answered = trio.Event()
    call = InferCall(endpoint, request, model, version, lambda call: answered.set())
    try:
        if not call.begin_nowait():
            await call.finish()
        await answered.wait()
        reply = call.render_now() or await call.render_in_thread()
    except BaseException:
        call.cancel()
        raise
    return reply


class InferEndpoint:
    """The state that all inference calls of one HTTP port share."""

    def __init__(self, *, services: Services, clock: Clock, policy: HeaderPolicy, max_input_size: int) -> None:
        self.services = services
        self.clock = clock
        self.policy = policy
        self.max_input_size = max_input_size
        self.bodies = ByteBudget(max(limits.REQUEST_BODIES_BYTES_MAX, max_input_size))
        self.threads = trio.CapacityLimiter(limits.HTTP_CODEC_THREADS_MAX)
        regions = services.shared_memory.regions
        self.tensors = TensorResolver(regions)
        self.tensors_inline = TensorResolver(regions, inline=True)

    def authorize(self, api: str, request: HttpRequest, model: str | None = None, *, changes: bool = False) -> None:
        """Raise Forbidden, PermissionDenied or Unauthenticated unless this request may use the API, for `model` if it is about
        one. For handlers whose route does not say what they do; the sender has been identified."""
        self.policy.require(api, request.fields)
        self.policy.require_here(api)
        if request.caller is not None:
            request.caller.authorize(api, model, changes=changes)

    def refused(self, request: HttpRequest, protocol: str, model: str, reply: HttpReply, error: TpyError) -> None:
        """Tell observers of a request for inference that was refused before it was opened for them."""
        now_ns = self.clock.now_ns()
        record = open_record(self.services.observers, request, protocol, model, now_ns)
        if record is not None:
            record.finish(now_ns, error.code.value, error.message, response_bytes=reply.content_length)

    def count_refusal(self, request: HttpRequest, error: Exception) -> None:
        """Count a request for inference that was refused with this error before a model had it; models count the others."""
        if isinstance(error, TpyError) and (not request.submitted or isinstance(error, TooManyRequests)):
            self.services.refusals.count(error.code.name)


class InferCall:
    """One inference request over HTTP, and the sink for its response. `answered` is called once, from within `begin_nowait`,
    `finish` or later, unless the call is cancelled before; it must not raise."""

    __slots__ = (
        "_answered",
        "_caller",
        "_cancelled",
        "_description",
        "_endpoint",
        "_handle",
        "_held",
        "_model",
        "_plan",
        "_refusal",
        "_response",
        "_version",
        "_version_text",
        "request",
    )

    def __init__(
        self,
        endpoint: InferEndpoint,
        request: HttpRequest,
        model: str,
        version: str | None,
        answered: Callable[[InferCall], None],
    ) -> None:
        self._endpoint = endpoint
        self.request = request
        self._model = model
        self._held: ResolvedModel | None = None
        self._version_text = version  # `_admit`, which may refuse it, sets `_version`
        self._answered = answered
        self._plan = _NO_PLAN
        self._description: ModelDescription | None = None
        self._handle: RequestHandle | None = None
        self._response: InferenceResponse | None = None
        self._refusal: HttpReply | None = None
        self._cancelled = False
        self._caller: Caller | None = None

    def sent(self, reply: HttpReply) -> None:
        """The reply is on its way, which is what an observer of the request waits for."""
        record = self.request.record
        if record is not None:
            finish_record(record, reply, self._endpoint.clock.now_ns())

    def _is_heavy_answer(self) -> bool:
        """Returns True if rendering the reply could hold up the loop."""
        response, plan = self._response, self._plan
        if response is None or response.error is not None:
            return False
        elements = string_bytes = 0
        for output in response.outputs:
            choice = plan.choices.get(output.name, plan.default)
            if output.datatype is DataType.BYTES and output.array.size <= limits.HTTP_INLINE_JSON_ELEMENTS_MAX:
                string_bytes += content_bytes(output.array)
            if choice.region is not None:
                if output.datatype is DataType.BYTES:
                    elements += output.array.size
                room = limits.REGION_INLINE_BYTES_MAX
                if choice.region.gpu is not None or held_bytes((output,), room + 1) > room:
                    return True
            elif choice.classification:
                elements += _CLASS_COST * output.array.size
            elif not choice.binary or output.datatype is DataType.BYTES:
                elements += output.array.size
        if elements > limits.HTTP_INLINE_JSON_ELEMENTS_MAX or string_bytes > limits.INLINE_STRING_OUTPUT_BYTES_MAX:
            return True
        if b"accept-encoding" not in self.request.fields:
            return False
        room = limits.HTTP_INLINE_COMPRESS_BYTES_MAX
        return held_bytes(response.outputs, room + 1) > room

    def begin_nowait(self) -> bool:
        """Check, decode and submit the request. False when decoding could hold up the loop: then the model is held, and
        `finish` has to be called."""
        try:
            model = self._admit()
            try:
                heavy = self._is_heavy(model.description)
                decoded = None if heavy else self._decode(model.description, self._endpoint.tensors_inline)
            except LongCopy:
                decoded = None
            if decoded is None:
                model.hold()
                self._held = model
                return False
            self._submit(model, *decoded)
        except Exception as error:
            self._refuse(error)
        return True

    async def finish(self) -> None:
        """After `begin_nowait`: decode in a thread, and submit. When cancelled, nothing is submitted."""
        model, self._held = self._held, None
        if model is None:
            raise InvariantViolation("an inference call that is not held was to be finished")
        try:
            decoded = await run_in_thread(self._decode, model.description, self._endpoint.tensors, limiter=self._endpoint.threads)
            if not self._cancelled:
                self._submit(model, *decoded)
        except Exception as error:
            self._refuse(error)
        finally:
            model.release()

    def cancel(self) -> None:
        """Forget the call: `answered` is not called any more. Safe at any time."""
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.request.record is not None:
            self.request.record.finish(self._endpoint.clock.now_ns(), ErrorCode.CANCELLED.value)

    def deliver(self, response: InferenceResponse) -> None:
        """Take the engine's response (ResponseSink). Models behind this route answer once."""
        if self._response is None and not self._cancelled:
            self._response = response
            # It refers to us and to the request's tensors, which would stay until the garbage collector finds the circle.
            self._handle = None
            self._answered(self)

    def render_now(self) -> HttpReply | None:
        """The reply of an answered call; None if making it could hold up the loop. Raises nothing."""
        if self._refusal is not None:
            return self._refusal
        fields = self.request.fields
        if load_report.ASKED_BY in fields:
            return None
        if self._response is not None and b"accept-encoding" not in fields:
            written = codec.encode_standard(self._response, self._plan)
            if written is not None:
                body, json_length = written
                if json_length is None:
                    return HttpReply(parts=(body,), content_length=len(body))
                headers = ((_JSON_LENGTH, str(json_length)),)
                return HttpReply(content_type=codec.BINARY_TYPE, parts=(body,), content_length=len(body), headers=headers)
        return None if self._is_heavy_answer() else self._render()

    async def render_in_thread(self) -> HttpReply:
        """The reply of an answered call, made in a thread, with the load where that was asked for. Raises nothing."""
        if self._is_heavy_answer():
            reply = await run_in_thread(self._render, limiter=self._endpoint.threads)
        else:
            reply = self._render()
        if load_report.ASKED_BY in self.request.fields:
            headers = await load_report.with_load(
                reply.headers, self.request.fields, self._endpoint.services, self._model, self._version
            )
            reply = msgspec.structs.replace(reply, headers=headers)
        return reply

    def _admit(self) -> ResolvedModel:
        endpoint = self._endpoint
        if not endpoint.policy.is_open:
            endpoint.policy.require("inference", self.request.fields)
            caller = self._caller = endpoint.policy.identify(self.request.fields, self.request.peer)
            if caller is not None:
                caller.require(INFER, self._model)
        self._version = None if self._version_text is None else parse_version(self._version_text)
        model = endpoint.services.inference.resolve(self._model, self._version)
        if model.description.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        self._description = model.description
        return model

    def _is_heavy(self, description: ModelDescription) -> bool:
        """Returns True if decoding the request could hold up the loop."""
        request = self.request
        if b"content-encoding" in request.fields:
            return True  # a few bytes may be many
        body = request.body
        size = len(body)
        if size <= limits.HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX:
            return False
        header = request.fields.get(b"inference-header-content-length")
        if header is None:
            return codec.is_heavy(body)
        if not header.isdigit() or len(header) > len(str(size)):
            return True
        view = memoryview(body)[: int(header)]
        if codec.is_heavy(view):
            return True
        if size <= limits.HTTP_INLINE_BYTES_MAX:
            return False
        # Elements of BYTES become objects one by one, also where the model wants numbers: a type may be written with escapes.
        has_texts = any(tensor.datatype is DataType.BYTES for tensor in description.inputs)
        return has_texts or b"BYTES" in (text := bytes(view)) or b"\\" in text

    def _decode(self, description: ModelDescription, tensors: TensorResolver) -> tuple[InferenceRequest, codec.HttpOutputPlan]:
        request = self.request
        fields = request.fields
        body = self._plain_body(request) if b"content-encoding" in fields else request.body
        header = fields.get(b"inference-header-content-length")
        decoded = codec.parse_infer(
            body,
            header_length=None if header is None else codec.parse_header_length(header, len(body)),
            description=description,
            version=self._version,
            received_ns=request.received_ns,
            forwarded=None if self._endpoint.policy.is_open else self._endpoint.policy.forwarded(request.headers),
            tensors=tensors,
        )
        request.body = b""  # from here on the tensors alone keep the body alive
        return decoded

    def _plain_body(self, request: HttpRequest) -> Body:
        encoding = request.fields[b"content-encoding"].decode("latin-1")
        try:
            return codec.decompress(request.body, encoding, self._endpoint.max_input_size)
        except Unsupported as error:
            raise _Refused(error, error_reply(error, headers=_SUPPORTED_ENCODINGS)) from None

    def _submit(self, model: ResolvedModel, request: InferenceRequest, plan: codec.HttpOutputPlan) -> None:
        self._plan = plan
        self.request.submitted = True
        if self.request.record is not None:
            request = msgspec.structs.replace(request, record=self.request.record)
        caller = self._caller
        if caller is None:
            handle = model.submit(request, self)
        else:
            handle = caller.submit(model, request, self, self._endpoint.clock.now_ns())
        if self._response is None:
            self._handle = handle

    def _reply_of(self, error: Exception) -> HttpReply:
        """The answer for the exception being handled."""
        if isinstance(error, _Refused):
            return error.reply
        if not isinstance(error, TpyError):
            return unexpected_error_reply(self.request.path)
        if self.request.record is not None:
            self.request.record.fail(error)
        forget_trace(error)
        return error_reply(error)

    def _refuse(self, error: Exception) -> None:
        self._endpoint.count_refusal(self.request, error.error if isinstance(error, _Refused) else error)
        if not self._cancelled:
            self._refusal = self._reply_of(error)
            self._answered(self)

    def _render(self) -> HttpReply:
        if self._refusal is not None:
            return self._refusal
        try:
            return self._encode()
        except Exception as error:
            return self._reply_of(error)

    def _encode(self) -> HttpReply:
        response, description = self._response, self._description
        if response is None or description is None:
            raise InvariantViolation("an inference call was rendered before it was answered")
        encoded = codec.encode_infer(response, self._plan, description)
        parts, length = encoded.parts, encoded.content_length
        headers: tuple[tuple[str, str], ...] = ()
        if encoded.json_length is not None:
            headers = ((_JSON_LENGTH, str(encoded.json_length)),)
        accepted = self.request.fields.get(b"accept-encoding")
        if accepted is not None:
            encoding = codec.choose_encoding(accepted.decode("latin-1"))
            if encoding != "identity":
                packed = codec.compress(parts, encoding)
                parts, length = [packed], len(packed)
                headers = (*headers, ("Content-Encoding", encoding))
        return HttpReply(content_type=encoded.content_type, parts=parts, content_length=length, headers=headers)


class _Refused(Exception):
    """A refusal whose answer needs additional headers."""

    def __init__(self, error: TpyError, reply: HttpReply) -> None:
        super().__init__()
        self.error = error
        self.reply = reply
