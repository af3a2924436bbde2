"""CallServer: the calls of a worker's model to the server (`worker/link/calls.py`), and what it asks of the model repository."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tpy.backend import ServerCall, ServerCalls, WaitingBatch
from tpy.errors import InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.limits import MODEL_CALL_BYTES_OUTSTANDING_MAX, MODEL_CALLS_OUTSTANDING_MAX
from tpy.messages import InferenceRequest, InferenceResponse, Residency, Tensor, record_of
from tpy_data.backends.python.protocol import translation
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.protocol.messages import (
    Called,
    LoadQuery,
    ModelReadyQuery,
    UnloadQuery,
    decode_call,
    decode_call_progress,
    encode_answer,
    received,
)
from tpy_data.backends.python.protocol.small import are_small_texts, is_small_answer
from tpy_data.backends.python.worker.wire.core.batch import Layout, NoMemory, read
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation, ReceivedFrame

_UINT64_MAX = (1 << 64) - 1

Reply = Callable[[object, str], None]
"""Replies to what was asked: with a result, or with an error."""


class _Outstanding:
    """One call that the worker waits for (a `CallSink`). `size` is that of its inputs in bytes."""

    __slots__ = ("_owner", "call", "model", "number", "sent", "size")

    def __init__(self, owner: CallServer, number: int, model: str, size: int) -> None:
        self.number = number
        self.model = model
        self.size = size
        self.sent = 0
        """Responses, but for the last, that the worker has not said to have taken."""
        self.call: ServerCall | None = None
        self._owner = owner

    def deliver(self, response: InferenceResponse) -> None:
        """On the Trio thread."""
        self._owner.answer(self, response)

    def refuse(self, error: TpyError) -> None:
        """On the Trio thread, or in that of the reader when the loop has ended."""
        self._owner.answer(self, type(error)(f"Model {self.model} - Error when running inference: {error}"))


class CallServer:
    """One per connection. `waiting` finds the batch that a call is waited for by, by its number."""

    def __init__(
        self, connection: WorkerConnection, server: ServerCalls | None, waiting: Callable[[int], WaitingBatch | None]
    ) -> None:
        self._connection = connection
        self._name = connection.name
        self._server = server
        self._waiting = waiting
        self._lock = threading.Lock()
        self._outstanding: dict[int, _Outstanding] = {}
        self._bytes = 0
        connection.handlers[FrameKind.CALL] = self._take_call
        connection.handlers[FrameKind.CALL_PROGRESS] = self._take_note

    def cancel_all(self) -> None:
        """The worker is gone."""
        with self._lock:
            outstanding, self._outstanding = list(self._outstanding.values()), {}
            self._bytes = 0
        for each in outstanding:
            if each.call is not None:
                each.call.cancel()

    def answer(self, outstanding: _Outstanding, answer: InferenceResponse | TpyError) -> None:
        """Send this. Never waits."""
        if self._connection.helper.is_busy or not is_small_answer(answer):
            self._connection.later(partial(self._send, outstanding, answer))
        else:
            self._send(outstanding, answer)

    def _send(self, outstanding: _Outstanding, answer: InferenceResponse | TpyError) -> None:
        layout = Layout(self._connection.devices)
        try:
            header = encode_answer(answer, layout)
        except TpyError as error:  # memory that cannot be shared
            layout.forget()
            answer, layout = error, Layout()
            header = encode_answer(answer, layout)
        if not self._note_answer(outstanding, answer):
            layout.forget()
            return
        try:
            loan = self._connection.lend(layout)
        except OSError as error:
            layout.forget()
            failure = Unavailable(f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}")
            self._connection.send(FrameKind.ANSWER, outstanding.number, encode_answer(failure, Layout()))
            return
        self._connection.send(FrameKind.ANSWER, outstanding.number, header, layout, loan)

    def _note_answer(self, outstanding: _Outstanding, answer: InferenceResponse | TpyError) -> bool:
        """Count an answer. False when the worker has given the call up."""
        with self._lock:
            if self._outstanding.get(outstanding.number) is not outstanding:
                return isinstance(answer, TpyError)  # what was refused at once was never known
            if isinstance(answer, TpyError) or answer.final:
                self._remove(outstanding.number)
            else:
                outstanding.sent += 1
            return True

    def _remove(self, number: int) -> _Outstanding | None:
        outstanding = self._outstanding.pop(number, None)
        if outstanding is not None:
            self._bytes -= outstanding.size
        return outstanding

    def _take_call(self, message: ReceivedFrame, on_loop: bool) -> bool:
        blocks, streams, called = decode_call(message.header)
        if on_loop and not are_small_texts(called.inputs):
            return False
        number = called.correlation_id
        if not 0 <= called.timeout_us <= _UINT64_MAX or (isinstance(number, int) and not 0 <= number <= _UINT64_MAX):
            raise ProtocolViolation(f"a call with correlation id {number} and a time-out of {called.timeout_us} us")
        outstanding = self._admit(message.stream, called.model, sum([descriptor[5] for descriptor in called.inputs]))
        if outstanding is None:
            return True
        devices = self._connection.devices
        try:
            inputs = tuple([received(each, message, devices, stays=True) for each in called.inputs])
        except TpyError as error:
            with self._lock:
                self._remove(message.stream)
            outstanding.refuse(error)
            return True
        parent = record_of(called.trace) if called.trace else None
        request = InferenceRequest(
            model_name=called.model,
            model_version=None if called.version < 0 else called.version,
            id=called.id,
            inputs=inputs,
            requested_outputs=called.outputs,
            parameters=translation.parameters_of(called.parameters),
            sequence=translation.sequence_of(called.correlation_id, called.flags),
            timeout_us=called.timeout_us,
            residency=_residency(inputs, called),
            record=None if parent is None else parent.child("call", called.model),
        )
        assert self._server is not None
        outstanding.call = self._server.infer(request, outstanding, streams=streams, waiting=self._waiting(blocks))
        if self._connection.is_lost():  # meanwhile: this one may not have been among the calls that were cancelled
            outstanding.call.cancel()
        return True

    def _admit(self, number: int, model: str, size: int) -> _Outstanding | None:
        """Count a call; None when it was refused, which the worker is notified of."""
        if number in self._outstanding or number <= 0:
            raise ProtocolViolation(f"call {number} is outstanding already")
        outstanding = _Outstanding(self, number, model, size)
        count = len(self._outstanding)
        if self._server is None:
            outstanding.refuse(Unsupported("there is no server around this model"))
        elif count >= MODEL_CALLS_OUTSTANDING_MAX:
            outstanding.refuse(Unavailable(f"{count} calls of instance '{self._name}' are outstanding, which is the maximum"))
        elif count and self._bytes + size > MODEL_CALL_BYTES_OUTSTANDING_MAX:
            outstanding.refuse(
                Unavailable(
                    f"calls of instance '{self._name}' with {self._bytes} bytes of inputs are outstanding, with this it would "
                    f"be more than {MODEL_CALL_BYTES_OUTSTANDING_MAX}"
                )
            )
        else:
            with self._lock:
                self._outstanding[number] = outstanding
                self._bytes += size
            return outstanding
        return None

    def _take_note(self, message: ReceivedFrame, on_loop: bool) -> bool:
        taken, ended = decode_call_progress(message.header)
        for number, count in taken:
            outstanding = self._outstanding.get(number)
            if outstanding is None:
                continue  # its last response is on the way
            with self._lock:
                if not 0 <= count <= outstanding.sent or outstanding.call is None:
                    raise ProtocolViolation(f"{count} of {outstanding.sent} responses were taken")
                outstanding.sent -= count
            outstanding.call.taken(count)
        for number in ended:
            with self._lock:
                given_up = self._remove(number)
            if given_up is not None and given_up.call is not None:
                given_up.call.cancel()
        return True

    def query_repository(self, query: LoadQuery | UnloadQuery | ModelReadyQuery, message: ReceivedFrame, reply: Reply) -> None:
        """Load or unload a model, or say whether it is ready."""
        server = self._server
        if server is None:
            reply(None, "there is no server around this model")
            return
        done = partial(self._controlled, reply)
        match query:
            case ModelReadyQuery():
                server.is_model_ready(query.model, query.version, lambda ready: reply(ready, ""))
            case UnloadQuery():
                server.unload_model(query.model, done, unload_dependents=query.dependents)
            case LoadQuery():
                try:
                    files = {each[0]: read(each, message.data, message.segment).tobytes() for each in query.files}
                    request = translation.load_request(query.model, query.config, files)
                except InvalidArgument as error:
                    done(error)
                except NoMemory as error:
                    done(Unavailable(str(error)))
                else:
                    server.load_model(request, done)

    def _controlled(self, reply: Reply, error: TpyError | None) -> None:
        reply(None, "" if error is None else translation.failed_request(self._name, error))


def _residency(inputs: Sequence[Tensor], called: Called) -> Residency | None:
    on_device = any(type(tensor.array) is not np.ndarray for tensor in inputs)
    if not on_device and not called.on_device:
        return None
    return Residency(on_device, None if called.on_device else frozenset())
