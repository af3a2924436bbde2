"""CallClient: a worker's CallPort: calls to the server and their answers, over the connection."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..model.messages import sendable
from ..pb_utils.context import LOADING
from ..pb_utils.failures import ErrorCode, TritonError, TritonModelException
from ..pb_utils.pending_call import PendingCall
from ..pb_utils.request import InferenceRequest, number_of, prefers_device, target_of
from ..pb_utils.response import InferenceResponse, received_response
from ..pb_utils.tensor import storage_of, wrap
from ..wire.core.batch import Layout, NoMemory
from ..wire.core.frames import FrameKind, ReceivedFrame
from ..wire.core.windows import BYTES_MAX, RESPONSES_MAX
from ..wire.endpoint import Closed, Foreign
from .connection import TEXT_BYTES_MAX, ServerConnection, decode, encode

_FOREIGN = "models can be called in the model's own process only, not in one that it has started"

_UINT8 = 2
"""The type number of TYPE_UINT8."""


class _Taken:
    """Answers of a call with many that were taken and not reported yet: they are reported in lots, of at least half of what
    may wait."""

    __slots__ = ("_bytes", "_count", "_sizes")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._count = 0

    def arrived(self, size: int) -> None:
        """An answer with `size` bytes of tensors has arrived."""
        self._sizes.append(size)

    def taken(self) -> int:
        """One was taken: how many to report now, 0 for none."""
        self._count += 1
        self._bytes += self._sizes.popleft()
        if 2 * self._count < RESPONSES_MAX and 2 * self._bytes < BYTES_MAX:
            return 0
        count, self._count, self._bytes = self._count, 0, 0
        return count


class CallClient:
    """One per worker. `batch` is the number of the batch that the main thread executes, 0 for none: a call that it makes is one
    that the batch waits for."""

    def __init__(self, connection: ServerConnection) -> None:
        self.phase = LOADING
        self.batch = 0
        self._connection = connection
        self._main_thread = threading.get_ident()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[PendingCall, _Taken | None]] = {}
        connection.handlers[FrameKind.ANSWER] = self._take_answer
        connection.on_loss.append(self._lose)

    def infer(self, request: InferenceRequest, *, streams: bool) -> PendingCall:
        """As `CallPort.infer`."""
        layout = self._connection.layout()
        try:
            sent = _request(request, layout)
        except Exception as unsent:
            layout.forget()
            raise TritonModelException(f"the inputs of the request cannot be sent: {type(unsent).__name__}: {unsent}") from None
        blocks = self.batch if threading.get_ident() == self._main_thread else 0
        text = encode([blocks, streams, sent])
        if len(text) > TEXT_BYTES_MAX:
            layout.forget()
            raise TritonModelException(f"a call with {len(text)} bytes of ids, parameters and names is too long to be sent")
        number = next(self._numbers)
        taken = _Taken() if streams else None
        pending = PendingCall(
            self._wait, None if taken is None else partial(self._report_taken, number, taken), partial(self._give_up, number)
        )
        self._open[number] = pending, taken
        try:
            self._connection.send(FrameKind.CALL, number, text, layout)
        except OSError as error:
            self._open.pop(number, None)
            layout.forget()
            raise TritonModelException(f"no shared memory for {layout.segment_bytes} bytes of inputs: {error}") from None
        except Foreign:
            self._open.pop(number, None)
            raise TritonModelException(_FOREIGN) from None
        except Closed:
            self._lose()
        if self._connection.lost:
            self._lose()
        return pending

    @property
    def has_devices(self) -> bool:
        """As `CallPort.has_devices`."""
        return self._connection.devices.sharing is not None

    def prepare_waiting_elsewhere(self) -> None:
        """As `CallPort.prepare_waiting_elsewhere`: from now on a separate thread reads."""
        self._connection.start_reader()

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """As `CallPort.load_model`."""
        layout = Layout()
        given = [layout.add(sendable(path), _UINT8, np.frombuffer(content, np.uint8)) for path, content in files.items()]
        self._connection.ask({"type": "load", "model": sendable(name), "config": sendable(config), "files": given}, layout)

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """As `CallPort.unload_model`."""
        self._connection.ask({"type": "unload", "model": sendable(name), "dependents": unload_dependents})

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """As `CallPort.is_model_ready`."""
        return bool(self._connection.ask({"type": "model_ready", "model": sendable(name), "version": version}))

    def _wait(self, pending: PendingCall) -> None:
        try:
            self._connection.wait(lambda: pending.ready)
        except Foreign:
            raise TritonModelException(_FOREIGN) from None
        except Closed:
            self._lose()

    def _report_taken(self, number: int, taken: _Taken) -> None:
        count = taken.taken()
        if count:
            self._connection.post(FrameKind.CALL_PROGRESS, 0, [[[number, count]], []])

    def _give_up(self, number: int) -> None:
        """Nobody wants the rest. Perhaps in the middle of garbage collection."""
        self._open.pop(number, None)
        self._connection.post(FrameKind.CALL_PROGRESS, 0, [[], [number]])

    def _take_answer(self, message: ReceivedFrame) -> None:
        final, answer = decode(message.header)
        known = self._open.get(message.stream)
        if known is None:
            return  # given up meanwhile
        pending, taken = known
        response = self._response(answer, message)
        if final:
            self._open.pop(message.stream, None)
        elif taken is not None:
            taken.arrived(sum([entry[5] for entry in answer[3]]))
        pending.put(response, final)

    def _response(self, answer: Sequence[Any], message: ReceivedFrame) -> InferenceResponse:
        code, error, parameters, outputs = answer
        if code >= 0:
            return received_response([], TritonError(error, ErrorCode(code)), "{}")
        read = self._connection.read
        try:
            tensors = [wrap(entry[0], entry[1], read(entry, message.data, message.segment)) for entry in outputs]
        except TritonModelException as unread:
            return received_response([], TritonError(str(unread)), "{}")
        except NoMemory as unread:
            return received_response([], TritonError(str(unread), ErrorCode.UNAVAILABLE), "{}")
        return received_response(tensors, None, parameters or "{}")

    def _lose(self) -> None:
        error = TritonError(self._connection.lost or "the server is gone")
        for number in list(self._open):
            known = self._open.pop(number, None)
            if known is not None:
                known[0].put(InferenceResponse(error=error), True)


def _request(request: InferenceRequest, layout: Layout) -> list[Any]:
    """A request as the server takes it, its tensors laid out."""
    name, version = target_of(request)
    correlation_id, parameters = request.correlation_id(), request.parameters()
    return [
        sendable(name),
        version,
        sendable(request.request_id()),
        sendable(correlation_id) if isinstance(correlation_id, str) else correlation_id,
        request.flags(),
        request.timeout(),
        "" if parameters == "{}" else sendable(parameters),
        [sendable(output) for output in request.requested_output_names()],
        [layout.add(sendable(given), number, array) for given, number, array in map(storage_of, request.inputs())],
        prefers_device(request),
        number_of(request.trace()),
    ]
