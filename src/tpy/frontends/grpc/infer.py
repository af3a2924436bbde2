"""ModelInfer: one unary call from its message to its answer, without a separate task.

    handle                  checks, decodes and submits, all before it returns; a refusal is an answer like any other
    deliver                 the engine has answered: encodes and replies, from within `handle` or later

What may take long (typed contents and BYTES of many elements, classification) is done in threads, by a task in the nursery of
`CallParts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from tpy.errors import ErrorCode, InvariantViolation, TpyError, Unsupported
from tpy.frontends.access import INFER
from tpy.frontends.grpc import codec
from tpy.frontends.grpc.calls import INFERENCE, CallParts, count_refusal, fail_inference, open_record, unexpected_error
from tpy.frontends.grpc.transport import Metadata, UnaryCall
from tpy.frontends.load_report import load_fields
from tpy.frontends.shared_memory import LongCopy, TensorResolver
from tpy.frontends.threads import forget_trace, run_in_thread
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription, RequestRecord
from tpy.services import RequestHandle, ResolvedModel, held

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller


class InferApi:
    """The handler of ModelInfer."""

    def __init__(self, parts: CallParts) -> None:
        self._parts = parts

    def handle(self, call: UnaryCall, message: memoryview) -> None:
        """See transport's UnaryHandler."""
        _UnaryInfer(self._parts, call).begin(message)


class _UnaryInfer:
    """One call, and the sink for its response."""

    __slots__ = (
        "_answered",
        "_call",
        "_caller",
        "_cancelled",
        "_description",
        "_handle",
        "_parts",
        "_plan",
        "_record",
        "_submitted",
    )

    def __init__(self, parts: CallParts, call: UnaryCall) -> None:
        self._parts = parts
        self._call = call
        self._plan = codec.NO_PLAN
        self._description: ModelDescription | None = None
        self._handle: RequestHandle | None = None
        self._answered = False
        self._cancelled = False
        self._submitted = False
        self._caller: Caller | None = None
        self._record: RequestRecord | None = None

    def begin(self, message: memoryview) -> None:
        """Check, decode and submit the request."""
        parts, call = self._parts, self._call
        model_name = ""
        try:
            if not parts.policy.is_open:
                parts.policy.require(INFERENCE, call.metadata)
                self._caller = parts.policy.identify(call)
            standard = codec.read_standard(message)
            if standard is not None:
                model_name = standard[0]
                self._record = open_record(parts, call, "grpc", len(message), model_name)
                self._submit_standard(standard)
                return
            parsed = codec.parse_now(message)
            if parsed is not None:
                model_name = parsed.head.model_name
                self._record = open_record(parts, call, "grpc", len(message), model_name)
            if parsed is None or codec.is_heavy(parsed, len(message)):
                self._start(lambda: self._begin_in_threads(parsed, message))
                return
            model, version = self._admit(model_name, parsed.head.model_version)
            try:
                decoded = self._decode(parsed, model.description, version, parts.tensors_inline)
            except LongCopy:
                self._start(lambda: self._begin_in_threads(parsed, message))
                return
            self._submit(model, *decoded)
        except TpyError as error:
            if not model_name and self._record is None:
                self._record = open_record(parts, call, "grpc", len(message), "")
            self._fail(error)
        except Exception:
            self._fail(unexpected_error(self._call.path))

    def deliver(self, response: InferenceResponse) -> None:
        """Take the engine's response (ResponseSink). Models behind this method answer once."""
        if self._answered or self._cancelled:
            return
        self._answered = True
        self._handle = None  # it refers to us and to the request's tensors, which would wait for the garbage collector
        try:
            standard = codec.encode_standard(response, self._plan)
            if standard is not None:
                self._reply([standard])
            elif codec.is_large(response, self._plan):
                self._start(lambda: self._reply_from_thread(response))
            else:
                self._reply(self._encode(response))
        except TpyError as error:
            self._fail(error)
        except Exception:
            self._fail(unexpected_error(self._call.path))

    def _submit_standard(self, standard: codec.Standard) -> None:
        call, parts = self._call, self._parts
        model, version = self._admit(standard[0], standard[1])
        forwarded = None if parts.policy.is_open else parts.policy.forwarded(call.metadata)
        decoded = codec.standard_request(
            standard, version=version, received_ns=parts.clock.now_ns(), deadline_ns=call.deadline_ns, forwarded=forwarded
        )
        self._submit(model, *decoded)

    def _admit(self, name: str, version_text: str) -> tuple[ResolvedModel, int | None]:
        if self._caller is not None:
            self._caller.require(INFER, name)
        version = codec.parse_version(version_text) if version_text else None
        model = self._parts.services.inference.resolve(name, version)
        if model.description.decoupled:
            raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
        self._description = model.description
        return model, version

    def _decode(
        self, parsed: codec.ParsedRequest, description: ModelDescription, version: int | None, tensors: TensorResolver
    ) -> codec.Decoded:
        call, parts = self._call, self._parts
        return codec.decode_request(
            parsed,
            description=description,
            version=version,
            received_ns=parts.clock.now_ns(),
            deadline_ns=call.deadline_ns,
            forwarded=parts.policy.forwarded(call.metadata),
            tensors=tensors,
        )

    def _submit(self, model: ResolvedModel, request: InferenceRequest, plan: codec.GrpcOutputPlan) -> None:
        self._plan = plan
        self._submitted = True
        if self._record is not None:
            request = msgspec.structs.replace(request, record=self._record)
        if self._caller is None:
            handle = model.submit(request, self)
        else:
            handle = self._caller.submit(model, request, self, self._parts.clock.now_ns())
        if not self._answered:
            self._handle = handle
            self._call.on_cancel(self._cancel)

    async def _begin_in_threads(self, parsed: codec.ParsedRequest | None, message: memoryview) -> None:
        threads = self._parts.threads
        if parsed is None:
            try:
                parsed = await run_in_thread(codec.parse_request, message, limiter=threads)
            finally:
                if not self._cancelled:
                    name = "" if parsed is None else parsed.head.model_name
                    self._record = open_record(self._parts, self._call, "grpc", len(message), name)
        model, version = self._admit(parsed.head.model_name, parsed.head.model_version)
        with held(model):
            decoded = await run_in_thread(self._decode, parsed, model.description, version, self._parts.tensors, limiter=threads)
            if not self._cancelled:
                self._submit(model, *decoded)

    def _encode(self, response: InferenceResponse) -> list[bytes | memoryview]:
        if self._description is None:
            raise InvariantViolation("an inference call was answered before it was admitted")
        return codec.encode_response(response, self._plan, self._description)

    async def _reply_from_thread(self, response: InferenceResponse) -> None:
        pieces = await run_in_thread(self._encode, response, limiter=self._parts.threads)
        if not self._cancelled:
            self._reply(pieces)

    def _reply(self, pieces: list[bytes | memoryview], trailing_metadata: Metadata | None = None) -> None:
        if trailing_metadata is None and self._call.load_format:
            self._parts.nursery.start_soon(self._reply_with_load, pieces)
            return
        self._call.reply(pieces, trailing_metadata or ())
        if self._record is not None:
            self._record.finish(self._parts.clock.now_ns(), response_bytes=sum(map(len, pieces)))

    async def _reply_with_load(self, pieces: list[bytes | memoryview]) -> None:
        model = self._description
        name, version = ("", None) if model is None else (model.name, model.version)
        load = await load_fields(self._parts.services, self._call.load_format, name, version)
        if not self._cancelled:
            self._reply(pieces, load)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the call in a task. The task is not cancelled with the call: it only waits for threads, which end soon."""
        self._call.on_cancel(self._cancel)
        self._parts.nursery.start_soon(self._finish, work)

    async def _finish(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except TpyError as error:
            self._fail(error)
        except Exception:
            self._fail(unexpected_error(self._call.path))

    def _cancel(self) -> None:
        self._cancelled = True
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.cancel()
        if self._record is not None:
            self._record.finish(self._parts.clock.now_ns(), ErrorCode.CANCELLED.value)

    def _fail(self, error: TpyError) -> None:
        self._answered = True
        count_refusal(self._parts, error, submitted=self._submitted)
        if not self._cancelled:
            now_ns = self._parts.clock.now_ns()
            fail_inference(self._call, error, now_ns)
            if self._record is not None:
                self._record.finish(now_ns, error.code.value, error.message)
        forget_trace(error)
