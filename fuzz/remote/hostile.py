"""Bytes that no peer of ours would send."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzz.chance import Chance
from fuzz.remote.trial import Memory
from fuzz.target import Violation
from tpy.devices import ArrayReference
from tpy.errors import InvalidArgument, NotFound
from tpy.limits.remote import REMOTE_FRAME_BYTES_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.remote.core import messages as m
from tpy.remote.core import questions as q
from tpy.remote.core.answerer import Answerer
from tpy.remote.core.caller import Caller
from tpy.remote.core.framing import FrameSplitter, ProtocolError
from tpy.remote.core.tensors import Bytes, message_of, request_of, response_of, submit_of

REGION_BYTES = 4096

INVARIANT = "whatever bytes arrive, both sides take them or raise ProtocolError, and hold no more than what arrived"


class _Handle:
    def cancel(self) -> None:
        return

    pause = resume = cancel


class _Sink:
    def deliver(self, response: InferenceResponse) -> None:
        for output in response.outputs:
            if output.array.dtype != output.datatype.numpy:
                raise Violation(f"{output.datatype} as {output.array.dtype}")


class _Window(Memory):
    def view(self, offset: int, size: int) -> Bytes:
        if not 0 <= offset < offset + size <= len(self.bytes):
            raise ProtocolError("outside")
        view: Bytes = self.bytes[offset : offset + size]
        return view


class _Elsewhere(ArrayReference):
    """An array in a GPU's memory."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(None, shape, np.dtype(np.float32))


def _find(place: q.RegionOffset, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """As the engine, of region 1."""
    size = math.prod(shape) * dtype.itemsize
    if place.number != 1:
        raise NotFound("no")
    if not 0 <= place.offset < place.offset + size <= REGION_BYTES:
        raise InvalidArgument("outside")
    return np.empty(shape, dtype)


def _honest(chance: Chance, memory: Memory) -> list[bytes]:
    texts = np.array([b"a", b"", chance.randbytes(40)], object)
    tensors = (
        Tensor("A", DataType.FP32, np.arange(6, dtype=np.float32).reshape(2, 3)),
        Tensor("T", DataType.BYTES, texts),
        Tensor("L", DataType.UINT8, np.zeros(40_000, np.uint8)),
    )
    request = InferenceRequest(model_name="m", inputs=tensors, parameters={"p": 1.5, "q": True})
    response = InferenceResponse(model_name="m", model_version=3, outputs=tensors, final=chance.random() < 0.5)
    in_region = InferenceRequest(model_name="m", inputs=(Tensor("R", DataType.FP32, _Elsewhere((2, 3)).as_array()),))
    place = q.RegionOffset(chance.choice((1, 2, -1)), chance.choice((0, 8, REGION_BYTES - 24, REGION_BYTES, -1, 2**62)))
    failed = InferenceResponse(model_name="m", model_version=3, error=NotFound("no"))
    number = chance.randint(1, 4)
    return [
        m.encode(submit_of(number, 1, request, memory.place)),
        m.encode(submit_of(number, 1, in_region, memory.place, lambda array: place)),
        m.encode(m.ForgetRegion(place.number)),
        m.encode(message_of(number, response, memory.place)),
        m.encode(message_of(number, failed, memory.place)),
        m.encode(m.Cancel(number)),
        m.encode(m.Taken(number, chance.randint(-1, 3))),
        m.encode(m.Release((chance.choice((0, 4096, -1, 2**40)),))),
        m.encode(m.Call(number, q.Statistics("m", None))),
        m.encode(m.Call(number, q.Explain("m", 1))),
        m.encode(m.Result(number, None, b"\xc3")),
        m.encode(m.Ready()),
    ]


def run(chance: Chance) -> int:
    """One attack; returns its steps: making it, and the pieces and frames that each side took."""
    memory = _Window()
    frames = _honest(chance, memory)
    attack = b"".join(chance.choices(frames, k=chance.randint(1, 8)))
    broken = bytearray(attack)
    for _ in range(chance.choice((0, 1, 1, 3, 20))):
        broken[chance.randrange(len(broken))] = chance.choice((0, 1, 0x7F, 0xC0, 0xFF, chance.randrange(256)))
    data = chance.choice((bytes(broken), bytes(broken[: chance.randrange(len(broken))]), chance.randbytes(chance.randrange(60))))
    return 1 + _take(chance, data, memory, of_engine=False) + _take(chance, data, memory, of_engine=True)


def _take(chance: Chance, data: bytes, memory: _Window, *, of_engine: bool) -> int:
    splitter = FrameSplitter()
    reader = m.Reader(m.FROM_ENGINE if of_engine else m.FROM_FRONTEND)
    answerer = Answerer(lambda number, response: None)
    caller = Caller(lambda message: None)
    for _ in range(3):
        caller.begin(_Sink())
    taken = 0
    try:
        while data:
            taken += 1
            size = chance.choice((1, 7, 500, len(data)))
            for kind, payload in splitter.feed(data[:size]):
                if len(payload) >= REMOTE_FRAME_BYTES_MAX:
                    raise Violation("a frame beyond the limit")
                taken += 1
                _act(reader.read(kind, payload), answerer, caller, memory)
            data = data[size:]
    except ProtocolError:
        return taken
    return taken


def _act(message: object, answerer: Answerer, caller: Caller, memory: _Window) -> None:
    match message:
        case m.Submit():
            remote = answerer.begin(message.number)
            try:
                request_of(message, memory.view, _find)
            except (InvalidArgument, NotFound):
                remote.deliver(InferenceResponse(model_name="m", model_version=1, error=NotFound("refused"), refused=True))
            else:
                remote.submitted(_Handle())
        case m.Response():
            pending = caller.find(message.number)
            response = response_of(message, memory.view)
            if pending is not None:
                pending.receive(response, 0)
        case m.Cancel() | m.Taken():
            request = answerer.find(message.number)
            if request is not None and isinstance(message, m.Taken):
                request.taken(message.count)
            elif request is not None:
                request.cancel()
        case m.Release():
            for offset in message.offsets:
                memory.arena.release(offset)
