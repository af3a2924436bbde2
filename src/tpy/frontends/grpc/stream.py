"""ModelStreamInfer: many requests and their responses on one call.

A request becomes a turn, which is the sink for its responses. Responses of ordinary models leave in the order of their requests,
those of decoupled models as they come. What may leave is sent at once while the client takes it, else by a task that waits. A
failure is a message in the stream, which goes on, unless the client asked for `triton_grpc_error`: then the first one ends it.

A client that reads slowly is not read from, and decoupled requests are paused while anything waits for it.

The nursery of a stream, opened by `StreamInferApi.handle`:

    handle
    +-- _InferStream.run        reads requests and submits them, one after the other
    +-- _send_forever           sends what the client did not take at once
    +-- _end_when_stopped       ends the stream when the server stops, once everything is answered

However the call ends, leaving the nursery cancels the requests that are still under way.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import trio

from tpy import limits
from tpy.errors import ErrorCode, Internal, InvariantViolation, TpyError, Unavailable
from tpy.frontends.access import INFER
from tpy.frontends.grpc import codec
from tpy.frontends.grpc.calls import INFERENCE, CallParts, count_refusal, fail_call, fail_inference, open_record, unexpected_error
from tpy.frontends.grpc.transport import Metadata, StreamCall
from tpy.frontends.shared_memory import LongCopy, TensorResolver
from tpy.frontends.threads import run_in_thread
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription, RequestRecord, held_bytes
from tpy.services import RequestHandle, ResolvedModel, held

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

Pieces = list[bytes | memoryview]

_STOPPING_TEXT = "GRPC server is shutting down and has stopped accepting new requests."
_GRPC_ERROR_KEY = "triton_grpc_error"
_ANSWER_BYTES = 1024
"""The memory of a waiting answer besides its tensors: some objects, and a text if it is an error."""


class StreamInferApi:
    """The handler of ModelStreamInfer."""

    def __init__(self, parts: CallParts) -> None:
        self._parts = parts

    async def handle(self, call: StreamCall) -> None:
        """See transport's StreamHandler."""
        try:
            self._parts.policy.require(INFERENCE, call.metadata)
            caller = self._parts.policy.identify(call)
            if caller is not None:
                caller.require_role(INFER)
        except TpyError as error:
            count_refusal(self._parts, error, submitted=False)
            fail_call(call, error)
            return
        async with trio.open_nursery() as nursery:
            stream = _InferStream(self._parts, call, nursery)
            try:
                await stream.run()
            finally:
                stream.cancel_all()
            nursery.cancel_scope.cancel()


class _Turn:
    """One request of a stream. `waiting` are its responses that an earlier request holds up; `ended` once it needs no more.
    `size` is what it holds, in bytes."""

    __slots__ = (
        "description",
        "ended",
        "handle",
        "id",
        "in_sequence",
        "ordered",
        "plan",
        "record",
        "size",
        "stream",
        "submitted",
        "version_text",
        "waiting",
    )

    def __init__(self, stream: _InferStream, size: int) -> None:
        self.stream = stream
        self.size = size
        self.in_sequence = self.submitted = False
        self.id = ""
        self.version_text = ""
        self.ordered = True
        self.plan = codec.NO_PLAN
        self.description: ModelDescription | None = None
        self.handle: RequestHandle | None = None
        self.ended = False
        self.record: RequestRecord | None = None
        self.waiting: list[_Answer] = []

    def deliver(self, response: InferenceResponse) -> None:
        """Take one of the engine's responses (ResponseSink)."""
        if not self.ended:
            if response.final:
                self.end()
            self.stream.take(_Answer(self, None if response.refused else response, response.error))

    def end(self) -> None:
        """The engine has no more for it."""
        self.ended = True
        self.handle = None  # it refers to us and to the request's tensors, which would wait for the garbage collector


class _Answer:
    """An answer to be sent: a response, or an error, without a response when the request was refused. `pieces` are
    there once it is encoded. `size` is in bytes, roughly what it will be."""

    __slots__ = ("error", "final", "pieces", "response", "size", "turn")

    def __init__(self, turn: _Turn, response: InferenceResponse | None, error: TpyError | None) -> None:
        self.turn = turn
        self.response = response
        self.error = error
        self.final = response is None or response.final
        self.pieces: Pieces | None = None
        self.size = _ANSWER_BYTES
        if response is not None:
            self.size += held_bytes(response.outputs, limits.GRPC_STREAM_WAITING_BYTES_MAX)

    @property
    def is_large(self) -> bool:
        """True if encoding it could hold up the loop."""
        return self.response is not None and self.pieces is None and codec.is_large(self.response, self.turn.plan)

    @property
    def is_silent(self) -> bool:
        """True if it is the end of a decoupled request that did not ask to be told of it."""
        return self._is_bare_end and not self.turn.plan.empty_final

    @property
    def _is_bare_end(self) -> bool:
        response = self.response
        if response is None or self.error is not None or self.turn.ordered:
            return False
        return response.final and not response.outputs

    def encode(self) -> Pieces:
        """The message, made once. Raises TpyError for a response that cannot be sent."""
        if self.pieces is None:
            self.pieces = self._encoded()
        return self.pieces

    def _encoded(self) -> Pieces:
        turn, response = self.turn, self.response
        if self.error is not None:
            return [codec.encode_stream_error(self.error.message, request_id=turn.id, response=response)]
        if response is None or turn.description is None:
            raise InvariantViolation("an answer without error needs a response of an admitted request")
        if self._is_bare_end:
            return [codec.encode_empty_final(response.model_name, turn.version_text, turn.id)]
        return codec.encode_stream_response(response, turn.plan, turn.description)


class _InferStream:
    """The state of one call. `turns` are the requests that are not answered, `order` those of them that leave in order, `outbox`
    the answers that may leave and that the client has not taken."""

    def __init__(self, parts: CallParts, call: StreamCall, nursery: trio.Nursery) -> None:
        self._parts = parts
        self._call = call
        self._scope = nursery.cancel_scope
        self._errors_end_call = _wants_grpc_errors(call.metadata)
        self._turns: dict[_Turn, None] = {}
        self._turns_bytes = 0
        self._turns_in_sequences = 0
        self._order: deque[_Turn] = deque()
        self._outbox: deque[_Answer] = deque()
        self._outbox_bytes = 0
        self._answer_bytes_max = 0
        self._paused: dict[_Turn, None] = {}
        self._progress = trio.lowlevel.ParkingLot()
        self._failed = False
        nursery.start_soon(self._send_forever)
        nursery.start_soon(self._end_when_stopped)

    async def run(self) -> None:
        """Read and submit requests until the client says that there are no more and everything is sent."""
        while (message := await self._call.receive_message()) is not None:
            await self._begin(message)
            del message  # its request keeps what it needs of it
            while not self._has_room:
                await self._progress.park()
        while not self._is_idle:
            await self._progress.park()

    def cancel_all(self) -> None:
        """Forget every request that is under way. Nothing is sent any more."""
        self._failed = True
        turns, self._turns = self._turns, {}
        for turn in turns:
            if turn.handle is not None:
                turn.handle.cancel()
            turn.end()
        now_ns = self._parts.clock.now_ns()
        for turn in (*turns, *[answer.turn for answer in self._outbox if answer.final]):
            if turn.record is not None:
                turn.record.finish(now_ns, ErrorCode.CANCELLED.value)

    def take(self, answer: _Answer) -> None:
        """An answer, to be sent when its turn comes. Raises nothing."""
        if self._failed:
            return
        turn = answer.turn
        self._answer_bytes_max = max(self._answer_bytes_max, answer.size)
        if not turn.ordered:
            self._let_go(answer)
            self._pause_if_slow(turn)
        elif self._order[0] is turn:
            self._let_go(answer)
            self._release()
        else:
            turn.waiting.append(answer)
            turn.size += answer.size
            self._turns_bytes += answer.size

    @property
    def _has_room(self) -> bool:
        if self._outbox_bytes > limits.GRPC_STREAM_WAITING_BYTES_MAX:
            return False
        turns = len(self._turns)
        due_bytes = turns * self._answer_bytes_max
        if turns < limits.GRPC_STREAM_REQUESTS_MAX and due_bytes <= limits.GRPC_STREAM_ANSWERS_BYTES_MAX:
            return True
        # What frees the slot that a sequence waits for may be the next message.
        return (
            self._turns_in_sequences > 0
            and turns < limits.GRPC_STREAM_SEQUENCE_REQUESTS_MAX
            and self._turns_bytes <= limits.GRPC_STREAM_SEQUENCE_BYTES_MAX
        )

    @property
    def _is_idle(self) -> bool:
        return not self._turns and not self._outbox

    # Requests

    async def _begin(self, message: memoryview) -> None:
        """Submit a request. An error in it becomes its answer; anything but a request ends the call."""
        turn = _Turn(self, len(message))
        self._turns[turn] = None
        self._turns_bytes += turn.size
        self._order.append(turn)
        standard = codec.read_standard(message)
        if standard is not None:
            turn.record = open_record(self._parts, self._call, "grpc-stream", len(message), standard[0])
            try:
                self._submit_standard(turn, standard)
            except TpyError as error:
                self._refuse(turn, error)
            except Exception:
                self._refuse(turn, unexpected_error(self._call.path))
            return
        try:
            parsed = codec.parse_now(message)
            if parsed is None:
                parsed = await run_in_thread(codec.parse_request, message, limiter=self._parts.threads)
        except TpyError as error:
            turn.record = open_record(self._parts, self._call, "grpc-stream", len(message), "")
            if isinstance(error, Internal):
                self._fail(error)
            else:
                self._refuse(turn, error)
            return
        turn.record = open_record(self._parts, self._call, "grpc-stream", len(message), parsed.head.model_name)
        try:
            await self._submit(turn, parsed, len(message))
        except TpyError as error:
            self._refuse(turn, error)
        except Exception:
            self._refuse(turn, unexpected_error(self._call.path))

    def _admit(self, turn: _Turn, name: str) -> tuple[ResolvedModel, int | None, Caller | None]:
        if self._parts.stop.is_set():
            raise Unavailable(_STOPPING_TEXT)
        # Each request anew: a stream is not to outlive its token.
        caller = self._parts.policy.identify(self._call)
        if caller is not None:
            caller.require(INFER, name)
        version = codec.parse_version(turn.version_text)
        model = self._parts.services.inference.resolve(name, version)
        turn.description = model.description
        return model, version, caller

    def _submit_standard(self, turn: _Turn, standard: codec.Standard) -> None:
        parts, call = self._parts, self._call
        name, turn.version_text, turn.id = standard[:3]
        model, version, caller = self._admit(turn, name)
        request, plan = codec.standard_request(
            standard,
            version=version,
            received_ns=parts.clock.now_ns(),
            deadline_ns=call.deadline_ns,
            forwarded=parts.policy.forwarded(call.metadata),
        )
        self._hand_over(turn, model, caller, request, plan)

    async def _submit(self, turn: _Turn, parsed: codec.ParsedRequest, size: int) -> None:
        parts, call, head = self._parts, self._call, parsed.head
        turn.id, turn.version_text = head.id, head.model_version
        model, version, caller = self._admit(turn, head.model_name)
        description = model.description
        forwarded = parts.policy.forwarded(call.metadata)

        def decode(tensors: TensorResolver) -> codec.Decoded:
            return codec.decode_request(
                parsed,
                description=description,
                version=version,
                received_ns=parts.clock.now_ns(),
                deadline_ns=call.deadline_ns,
                forwarded=forwarded,
                tensors=tensors,
            )

        if not codec.is_heavy(parsed, size):
            with suppress(LongCopy):
                self._hand_over(turn, model, caller, *decode(parts.tensors_inline))
                return
        with held(model):
            decoded = await run_in_thread(decode, parts.tensors, limiter=parts.threads)
            self._hand_over(turn, model, caller, *decoded)

    def _hand_over(
        self, turn: _Turn, model: ResolvedModel, caller: Caller | None, request: InferenceRequest, plan: codec.GrpcOutputPlan
    ) -> None:
        turn.plan = plan
        turn.submitted = True
        if turn.record is not None:
            request = msgspec.structs.replace(request, record=turn.record)
        if request.sequence is not None:
            turn.in_sequence = True
            self._turns_in_sequences += 1
        if model.description.decoupled:
            turn.ordered = False
            self._order.remove(turn)
        if caller is None:
            handle = model.submit(request, turn)
        else:
            handle = caller.submit(model, request, turn, self._parts.clock.now_ns())
        if not turn.ended:
            turn.handle = handle
            self._pause_if_slow(turn)

    def _refuse(self, turn: _Turn, error: TpyError) -> None:
        count_refusal(self._parts, error, submitted=turn.submitted)
        turn.end()
        self.take(_Answer(turn, None, error))

    # Answers

    def _release(self) -> None:
        """Let go what was held up, up to the first request that is not answered."""
        order = self._order
        while order:
            turn = order[0]
            for answer in turn.waiting:
                self._let_go(answer)
            turn.waiting.clear()
            if turn in self._turns:
                return
            order.popleft()

    def _notify(self, answer: _Answer, size: int) -> None:
        """An answer of `size` bytes has left; observers are told with the last one of its request."""
        record, error = answer.turn.record, answer.error
        if record is None:
            return
        record.response_bytes += size
        if answer.final:
            now_ns = self._parts.clock.now_ns()
            if error is None:
                record.finish(now_ns)
            else:
                record.finish(now_ns, error.code.value, error.message)

    def _let_go(self, answer: _Answer) -> None:
        """Its turn has come: send it, or queue it behind what waits already."""
        if answer.final:
            turn = answer.turn
            if turn in self._turns:
                del self._turns[turn]
                self._turns_bytes -= turn.size
                self._turns_in_sequences -= turn.in_sequence
            self._progress.unpark_all()
        if answer.is_silent or self._failed:
            self._notify(answer, 0)
            return
        if self._outbox or answer.is_large or not self._send_nowait(answer):
            self._outbox.append(answer)
            self._outbox_bytes += answer.size
            self._progress.unpark_all()

    def _send_nowait(self, answer: _Answer) -> bool:
        """Send an answer if the client takes it now."""
        if self._ends_call(answer):
            return True
        pieces = self._encode(answer)
        sent = self._call.send_nowait(pieces)
        if sent:
            self._notify(answer, sum(map(len, pieces)))
        return sent

    async def _send_forever(self) -> None:
        """Send the outbox whenever there is something in it."""
        while True:
            while not self._outbox:
                await self._progress.park()
            answer = self._outbox[0]
            if self._ends_call(answer):
                return
            if answer.is_large:
                pieces = await run_in_thread(self._encode, answer, limiter=self._parts.threads)
            else:
                pieces = self._encode(answer)
            await self._call.send_message(pieces)
            self._notify(answer, sum(map(len, pieces)))
            self._outbox.popleft()
            self._outbox_bytes -= answer.size
            self._progress.unpark_all()
            self._resume()

    def _encode(self, answer: _Answer) -> Pieces:
        """The message for an answer; for one that cannot be sent, the message that says why. Raises nothing."""
        try:
            return answer.encode()
        except TpyError as error:
            answer.error = error.with_traceback(None)  # its frames hold the answer, and with it regions of clients
        except Exception:
            answer.error = unexpected_error(self._call.path)
        return answer.encode()

    def _ends_call(self, answer: _Answer) -> bool:
        """Returns True if the answer is an error that the client wants as the end of the call; it has ended then."""
        if answer.error is None or not self._errors_end_call:
            return False
        self._notify(answer, 0)
        self._fail(answer.error)
        return True

    def _pause_if_slow(self, turn: _Turn) -> None:
        """Pause a decoupled request while answers wait for the client."""
        if self._outbox and not turn.ordered and turn.handle is not None:
            turn.handle.pause()
            self._paused[turn] = None

    def _resume(self) -> None:
        """Let paused requests go on, one after the other, until an answer has to wait again."""
        paused, self._paused = self._paused, {}
        while paused and not self._outbox:
            turn = next(iter(paused))
            del paused[turn]
            if turn.handle is not None:
                turn.handle.resume()
        self._paused = {**paused, **self._paused}  # the ones that did not get their chance come first next time

    # Ends

    def _fail(self, error: TpyError) -> None:
        """End the call; what was sent before arrives."""
        if not self._failed:
            self._failed = True
            fail_inference(self._call, error, self._parts.clock.now_ns())
            self._scope.cancel()

    async def _end_when_stopped(self) -> None:
        await self._parts.stop.wait()
        while not self._is_idle:
            await self._progress.park()
        self._fail(Unavailable(_STOPPING_TEXT))


def _wants_grpc_errors(metadata: Metadata) -> bool:
    return any(name == _GRPC_ERROR_KEY and value == "true" for name, value in metadata)
