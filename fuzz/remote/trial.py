"""A conversation between both sides of the protocol, in any order, against what frontends and engine were told."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.errors import Unavailable
from tpy.limits.remote import REMOTE_INLINE_BYTES_MAX, REMOTE_WINDOW_BYTES, REMOTE_WINDOW_RESPONSES
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.remote.core import messages as m
from tpy.remote.core.answerer import Answerer, RemoteRequest
from tpy.remote.core.arena import Arena
from tpy.remote.core.caller import Caller, PendingRequest
from tpy.remote.core.framing import FrameSplitter
from tpy.remote.core.tensors import message_of, request_of, response_of, submit_of

INVARIANT = (
    "every sink gets the responses of its own request, whole, in order and once, an error at most in place of some that waited; "
    "nothing after the final one or a cancel; at most a window is under way; at the end both tables and both memories are empty"
)

_ARENA_BYTES = 1 << 20


class Memory:
    """A shared memory and the blocks of it that its reader still looks at."""

    def __init__(self) -> None:
        self.arena = Arena(_ARENA_BYTES)
        self.bytes = np.zeros(_ARENA_BYTES, np.uint8)
        self.viewed: list[int] = []

    def place(self, size: int) -> tuple[int, Any] | None:
        """See core.tensors.Place."""
        offset = self.arena.allocate(size)
        return None if offset is None else (offset, self.bytes[offset : offset + size])

    def view(self, offset: int, size: int) -> Any:
        """See core.tensors.View. A copy: whoever gets it may keep it after the release."""
        self.viewed.append(offset)
        return self.bytes[offset : offset + size].copy()


class Direction:
    """Bytes that are under way, in one direction."""

    def __init__(self, table: dict[int, type[msgspec.Struct]]) -> None:
        self._reader = m.Reader(table)
        self._splitter = FrameSplitter()
        self._bytes = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Put a message on its way."""
        self._bytes += m.encode(message)

    def receive(self, chance: Chance) -> list[msgspec.Struct]:
        """The messages in some of the bytes, cut anywhere."""
        size = chance.choice((1, 3, 40, 1000, len(self._bytes)))
        data = bytes(self._bytes[:size])
        del self._bytes[:size]
        return [self._reader.read(kind, payload) for kind, payload in self._splitter.feed(data)]

    @property
    def is_empty(self) -> bool:
        """True if everything has arrived."""
        return not self._bytes and not self._splitter.buffered


class Model:
    """The engine's side of one request: a model that answers when it likes, and waits while it is paused. The handle for it."""

    def __init__(self, sink: RemoteRequest) -> None:
        self.sink = sink
        self.paused = False
        self.cancelled = False
        self.ended = False
        self.said: list[int] = []
        self._waiting: deque[InferenceResponse] = deque()

    def say(self, value: int, size: int, *, final: bool) -> None:
        """A response with `size` bytes that begin with `value`."""
        array = np.full(size, value % 251, np.uint8)
        outputs = (Tensor("V", DataType.INT64, np.array([value])), Tensor("D", DataType.UINT8, array))
        self.said.append(value)
        self.ended = final
        self._waiting.append(InferenceResponse(model_name="m", model_version=1, outputs=outputs, final=final))
        self._deliver()

    def fail(self) -> None:
        """An error, in place of what waits."""
        self.ended = True
        self._waiting.clear()
        error = Unavailable("failed")
        self.sink.deliver(InferenceResponse(model_name="m", model_version=1, error=error))

    def cancel(self) -> None:
        self.cancelled = True
        self._waiting.clear()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._deliver()

    def _deliver(self) -> None:
        while self._waiting and not self.paused and not self.cancelled:
            self.sink.deliver(self._waiting.popleft())


class Client:
    """The frontend's side of one request: its sink, and what it does with its handle."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.handle: PendingRequest | None = None
        self.number = 0
        self.got: list[int] = []
        self.paused = self.final = self.failed = self.cancelled = False

    def deliver(self, response: InferenceResponse) -> None:
        if self.final or self.cancelled:
            raise Violation(f"request {self.number} got a response after its end")
        if self.paused and response.error is None:
            raise Violation(f"request {self.number} got a response while it was paused")
        self.final = response.final
        self.failed = response.error is not None
        if response.error is None:
            number, data = response.outputs
            value = int(number.array[0])
            if not (data.array == value % 251).all():
                raise Violation(f"request {self.number} got the bytes of another response")
            self.got.append(value)
        if self.handle is not None and not self.final and self._chance.random() < 0.2:
            self.paused = True
            self.handle.pause()


class Conversation:
    """Both sides, and everything under way between them."""

    def __init__(self, chance: Chance, caller: type[Caller] = Caller) -> None:
        self.chance = chance
        self.up, self.down = Direction(m.FROM_FRONTEND), Direction(m.FROM_ENGINE)
        self.up_memory, self.down_memory = Memory(), Memory()
        self.caller = caller(self.up.send)
        self.answerer = Answerer(self._respond)
        self.clients: dict[int, Client] = {}
        self.models: dict[int, Model] = {}
        self._values = 0

    def _respond(self, number: int, response: InferenceResponse) -> None:
        self.down.send(message_of(number, response, self.down_memory.place))

    def submit(self) -> None:
        """A frontend submits a request."""
        client = Client(self.chance)
        client.handle = self.caller.begin(client)
        client.number = client.handle.number
        self.clients[client.number] = client
        data = np.full(self._size(), client.number % 251, np.uint8)
        request = InferenceRequest(model_name="m", inputs=(Tensor("D", DataType.UINT8, data),), parameters={"n": client.number})
        self.up.send(submit_of(client.number, 1, request, self.up_memory.place))

    def _size(self) -> int:
        return self.chance.choice((0, 1, 8, 100, REMOTE_INLINE_BYTES_MAX + 1, 3 * REMOTE_INLINE_BYTES_MAX))

    def hear_up(self) -> None:
        """Some bytes reach the engine."""
        for message in self.up.receive(self.chance):
            if isinstance(message, m.Submit):
                self._begin(message)
            elif isinstance(message, m.Release):
                for offset in message.offsets:
                    self.down_memory.arena.release(offset)
            elif isinstance(message, m.Cancel | m.Taken):
                request = self.answerer.find(message.number)
                if request is None:
                    continue
                if isinstance(message, m.Cancel):
                    request.cancel()
                else:
                    request.taken(message.count)

    def _begin(self, message: m.Submit) -> None:
        remote = self.answerer.begin(message.number)
        request = request_of(message, self.up_memory.view)
        if request.parameters["n"] != message.number or not (request.inputs[0].array == message.number % 251).all():
            raise Violation(f"request {message.number} arrived as another")
        model = self.models[message.number] = Model(remote)
        remote.submitted(model)

    def hear_down(self) -> None:
        """Some bytes reach the frontend."""
        for message in self.down.receive(self.chance):
            if isinstance(message, m.Response):
                pending = self.caller.find(message.number)
                response = response_of(message, self.down_memory.view)
                if pending is not None:
                    pending.receive(response, sum(output.array.nbytes for output in response.outputs))
            elif isinstance(message, m.Release):
                for offset in message.offsets:
                    self.up_memory.arena.release(offset)

    def release(self, memory: Memory, direction: Direction) -> None:
        """The reader of a memory is done with some of it."""
        count = self.chance.randint(0, len(memory.viewed))
        self.chance.shuffle(memory.viewed)
        offsets, memory.viewed = memory.viewed[:count], memory.viewed[count:]
        if offsets:
            direction.send(m.Release(tuple(offsets)))

    def model_acts(self) -> None:
        """A model says something."""
        running = [model for model in self.models.values() if not model.ended and not model.cancelled]
        if running:
            model = self.chance.choice(running)
            if self.chance.random() < 0.05:
                model.fail()
                return
            for _ in range(self.chance.choice((1, 1, 2, 100))):
                self._values += 1
                model.say(self._values, self._size(), final=False)
            if self.chance.random() < 0.4 and not model.cancelled:
                self._values += 1
                model.say(self._values, 0, final=True)

    def client_acts(self) -> None:
        """A frontend goes on, or gives up."""
        open_ones = [client for client in self.clients.values() if not client.final and not client.cancelled]
        if not open_ones:
            return
        client = self.chance.choice(open_ones)
        if client.handle is None:
            return
        if self.chance.random() < 0.1:
            client.cancelled = True
            client.handle.cancel()
        elif client.paused:
            client.paused = False
            client.handle.resume()

    def check_windows(self) -> None:
        """No more is under way than the window allows."""
        for request in self.answerer.requests():
            if request.untaken > REMOTE_WINDOW_RESPONSES or request.untaken_bytes > REMOTE_WINDOW_BYTES + (1 << 20):
                raise Violation(f"{request.untaken} responses, {request.untaken_bytes} bytes are under way for one request")

    def finish(self) -> None:
        """Everything ends, and everything arrives."""
        for model in self.models.values():
            if not model.ended and not model.cancelled:
                model.say(0, 0, final=True)
        for _ in range(100_000):
            self.hear_up()
            self.hear_down()
            self.release(self.up_memory, self.down)
            self.release(self.down_memory, self.up)
            self.client_acts()
            self.model_ends()
            if self._is_over:
                break
        else:
            raise Violation(f"{self.caller.pending} requests do not end")
        for number, client in self.clients.items():
            self._judge(client, self.models.get(number))

    def model_ends(self) -> None:
        """Models that begin late end at once."""
        for model in self.models.values():
            if not model.ended and not model.cancelled:
                model.say(0, 0, final=True)

    @property
    def _is_over(self) -> bool:
        memories = (self.up_memory, self.down_memory)
        empty = self.up.is_empty and self.down.is_empty and not any(memory.viewed for memory in memories)
        return (
            empty and not self.caller.pending and not self.answerer.open and not any(each.arena.taken_bytes for each in memories)
        )

    def _judge(self, client: Client, model: Model | None) -> None:
        said = [] if model is None else model.said
        if client.got != said[: len(client.got)]:
            raise Violation(f"request {client.number} got {client.got}, its model said {said}")
        if not client.cancelled and not client.failed and client.got != said:
            raise Violation(f"request {client.number} got {len(client.got)} of {len(said)} responses")


def converse(chance: Chance, caller: type[Caller] = Caller) -> int:
    """One conversation; returns its number of steps."""
    talk = Conversation(chance, caller)
    steps = 0
    for _ in chance.rounds((50, 60, 150)):
        steps += 1
        act = chance.choice((talk.submit, talk.hear_up, talk.hear_down, talk.hear_down, talk.model_acts, talk.client_acts, None))
        chance.took("release" if act is None else act.__name__.replace("_", " "))
        if act is not None:
            act()
        elif chance.random() < 0.5:
            talk.release(talk.up_memory, talk.down)
        else:
            talk.release(talk.down_memory, talk.up)
        talk.check_windows()
    talk.finish()
    return steps
