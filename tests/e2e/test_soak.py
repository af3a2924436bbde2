"""The soak: a model is updated again and again under load, and no request fails or is answered by what may not answer it.

Every content of a model file multiplies by a factor that no other has, so an answer tells which one gave it. A factor may answer
a request that was under way at some moment between the begin of the update that brought it and the end of the one that replaced
it: what is checked is that updates are atomic, not only that answers come.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trio

from .keep_alive import KeepAliveConnection, connect
from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess

CONNECTIONS = 16
RELOADS = 20
REQUESTS_OF_A_RELOAD = 200
CONFIG = AFFINE_CONFIG + "version_policy { all { } }\ndynamic_batching { }\n"


class _Tensor(msgspec.Struct):
    data: list[float]


class _Answer(msgspec.Struct):
    model_version: str
    outputs: list[_Tensor]


_decode = msgspec.json.Decoder(_Answer).decode


class Book:
    """The factors that may answer at a time, for one way of asking (a version, or the newest one)."""

    def __init__(self) -> None:
        self._spans: dict[float, tuple[float, float]] = {}

    @property
    def newest(self) -> float:
        """The factor that was brought last and not replaced."""
        return next(reversed(self._spans))

    def bring(self, factor: float) -> None:
        """From now on this factor may answer."""
        self._spans.pop(factor, None)
        self._spans[factor] = (trio.current_time(), math.inf)

    def settle(self) -> None:
        """From now on only the newest factor may answer."""
        now = trio.current_time()
        for factor, (begin, end) in self._spans.items():
            if end == math.inf and factor != self.newest:
                self._spans[factor] = (begin, now)

    def allows(self, factor: float, sent: float, received: float) -> bool:
        """Returns True if this factor may have answered a request."""
        begin, end = self._spans.get(factor, (math.inf, -math.inf))
        return begin <= received and end >= sent


class Soak:
    """A model under change, and the requests that are sent meanwhile."""

    def __init__(self, server: ServerProcess, model: ModelFolder) -> None:
        self.server = server
        self.model = model
        self.answered = 0
        self.first = Book()
        self.newest = Book()
        self._factors = itertools.count(2)
        self._progress = trio.Event()

    def write_first(self) -> None:
        """Write version 1 with a new factor."""
        factor = next(self._factors)
        self.first.bring(factor)
        if not (self.model.path / "2").exists():
            self.newest.bring(factor)
        self.model.affine(1, factor)

    def write_second(self) -> None:
        """Write version 2 with a new factor."""
        factor = next(self._factors)
        self.newest.bring(factor)
        self.model.affine(2, factor)

    def remove_second(self) -> None:
        """Take version 2 away, in one step."""
        self.newest.bring(self.first.newest)
        (self.model.path / "2").rename(self.model.path.parent.parent / f"removed-{next(self._factors)}")

    def settle(self) -> None:
        """The update has taken effect."""
        self.first.settle()
        self.newest.settle()

    async def ask_forever(self, number: int) -> None:
        """Ask on one connection: even numbers ask for the newest version, odd ones for version 1."""
        book, path = (self.newest, "infer") if number % 2 == 0 else (self.first, "versions/1/infer")
        data = [number + 1.0, -2.0 * number, 0.5]
        body = msgspec.json.encode({"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": data}]})
        request = (
            f"POST /v2/models/{self.model.name}/{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        async with connect(self.server.http) as connection:
            while True:
                sent = trio.current_time()
                status, answer = await connection.send(request)
                received = trio.current_time()
                assert status == 200, answer
                values = _decode(answer).outputs[0].data
                factor = values[2] / data[2]
                assert values == [value * factor for value in data], values
                assert book.allows(factor, sent, received), f"{path}: {factor}, but {book.newest} is newest"
                self.answered += 1
                self._progress.set()

    async def wait_answered(self, count: int) -> None:
        """Wait until so many more requests were answered."""
        goal = self.answered + count
        while self.answered < goal:
            await self._progress.wait()
            self._progress = trio.Event()


def instances(soak: Soak, turn: int) -> None:
    """Another number of instances: the model file stays loaded."""
    soak.model.config(CONFIG + f"instance_group [ {{ count: {1 + turn % 3} }} ]\n")


def delay(soak: Soak, turn: int) -> None:
    """Another configuration: the model is loaded anew."""
    soak.model.config(CONFIG.replace("{ }\n", f"{{ max_queue_delay_microseconds: {turn} }}\n"))


CHANGES: list[Callable[[Soak, int], None]] = [
    lambda soak, turn: soak.write_first(),
    delay,
    lambda soak, turn: soak.write_second(),
    instances,
    lambda soak, turn: soak.write_first(),
    lambda soak, turn: soak.remove_second(),
]


@pytest.fixture
def model(repository: Path) -> ModelFolder:
    return ModelFolder(repository, "soak").config(CONFIG)


async def run_soak(soak: Soak, connections: int, update: Callable[[KeepAliveConnection], Awaitable[None]]) -> None:
    """Keep asking on `connections` connections while `update` runs."""
    async with trio.open_nursery() as nursery, connect(soak.server.http) as control:
        for number in range(connections):
            nursery.start_soon(soak.ask_forever, number)
        await soak.wait_answered(connections)
        await update(control)
        nursery.cancel_scope.cancel()


@pytest.mark.time_limit(600)
async def test_reloads_on_request(model: ModelFolder, repository: Path, soak: int) -> None:
    flags = ("--model-control-mode=explicit", "--load-model=soak")

    async def update(control: KeepAliveConnection) -> None:
        for turn in range(RELOADS * soak):
            CHANGES[turn % len(CHANGES)](run, turn)
            reply = await control.post("/v2/repository/models/soak/load")
            assert reply.status == 200, reply.body
            run.settle()
            await run.wait_answered(REQUESTS_OF_A_RELOAD)

    model.affine(1, 1)
    with ServerProcess(*flags, repositories=[repository]) as server:
        run = Soak(server, model)
        run.first.bring(1)
        run.newest.bring(1)
        await run_soak(run, CONNECTIONS, update)


async def test_changes_that_are_polled(model: ModelFolder, repository: Path) -> None:
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")

    async def seen(control: KeepAliveConnection, path: str, factor: float) -> None:
        body = b'{"inputs":[{"name":"INPUT","shape":[1,3],"datatype":"FP32","data":[1,1,1]}]}'
        while True:
            reply = await control.post(f"/v2/models/soak/{path}", body)
            assert reply.status == 200, reply.body
            if _decode(reply.body).outputs[0].data[0] == factor:
                return

    async def update(control: KeepAliveConnection) -> None:
        for change in (Soak.write_first, Soak.write_second, Soak.write_first, Soak.remove_second):
            change(soak)
            await seen(control, "versions/1/infer", soak.first.newest)
            await seen(control, "infer", soak.newest.newest)
            soak.settle()
            await soak.wait_answered(100)

    model.affine(1, 1)
    with ServerProcess(*flags, repositories=[repository]) as server:
        soak = Soak(server, model)
        soak.first.bring(1)
        soak.newest.bring(1)
        await run_soak(soak, 4, update)
