"""A frontend of somebody else: for each line, which is the name of a model, it answers whether that is ready."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

import msgspec
import trio

from tpy.clock import Clock
from tpy.errors import InvalidArgument
from tpy.flag import PORT_MAX, Value, new_flag, read_values
from tpy.frontends.table import Frontend
from tpy.frontends.transport import BoundAddress, Demand, Ends, ListenOptions, Port, Wire, serve_port
from tpy.services import Services


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    allow_hello: bool
    hello_port: int
    hello_greeting: str


class HelloOptions(ListenOptions, frozen=True, kw_only=True):
    greeting: str


class HelloConnection:
    receive_bytes_max = 1000

    def __init__(self, options: HelloOptions, services: Services, wire: Wire) -> None:
        self._options = options
        self._services = services
        self._wire = wire
        self._names, self._waiting = trio.open_memory_channel[str](10)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer)
            await self._wire.read(self)
            self._names.close()

    async def _answer(self) -> None:
        async for name in self._waiting:
            ready = await self._services.repository.model_ready(name)
            self._wire.send_nowait([f"{self._options.greeting} {name}: {ready}\n".encode()])

    def begin_drain(self) -> None:
        self._wire.send_nowait([b"bye\n"])
        self._names.close()

    def get_buffer(self) -> None:
        return None

    def buffer_updated(self, count: int) -> Demand:
        raise NotImplementedError

    def data_received(self, data: bytes) -> Demand:
        for line in data.decode().splitlines():
            self._names.send_nowait(line)
        return Demand.READ

    def proceed(self) -> Demand:
        return Demand.READ


Options = HelloOptions


def read_options(values: Mapping[str, Value]) -> HelloOptions | None:
    v = read_values(values, _Values)
    if not v.allow_hello:
        return None
    if not v.hello_greeting:
        raise InvalidArgument("--hello-greeting: expected a word")
    return HelloOptions(address="127.0.0.1", port=v.hello_port, greeting=v.hello_greeting, drain_timeout_s=1.0)


async def serve(
    options: HelloOptions,
    services: Services,
    clock: Clock,
    *,
    stop: trio.Event,
    inherited: Sequence[socket.socket] = (),
    task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
) -> None:
    port = Port(options, clock, name="hello")

    async def connect(wire: Wire, ends: Ends) -> None:
        connection = HelloConnection(options, services, wire)
        with port.serving(connection):
            await connection.run()

    await serve_port(port, connect, stop=stop, inherited=inherited, task_status=task_status)


FRONTEND = Frontend(
    name="hello",
    service="HelloService",
    module="tpy_hello",
    flags=(
        new_flag("Hello", "allow-hello", False, "Serve hello."),
        new_flag("Hello", "hello-port", 0, "Port to listen on.", minimum=0, maximum=PORT_MAX),
        new_flag("Hello", "hello-greeting", "hello", "The first word."),
    ),
)
