"""Very many TLS handshakes at once: the loop takes them a few at a time."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from tpy.clock import SystemClock
from tpy.frontends.transport import ListenOptions, TlsOptions
from tpy.frontends.transport.serving import Ends, Port, serve_port
from tpy.frontends.transport.wire import Wire

CERTIFICATES = Path(__file__).parents[1] / "grpc" / "transport" / "certificates"
COUNT = 400


class Stretches(trio.abc.Instrument):
    """The longest turn of the loop, and all of them together, in CPU time of its thread."""

    def __init__(self) -> None:
        self.longest_ns = self.sum_ns = 0
        self._began_ns = 0

    def begin(self) -> None:
        """Measure from now on."""
        self._began_ns = time.thread_time_ns()

    def after_io_wait(self, timeout: float) -> None:
        """A turn begins."""
        self.begin()

    def before_io_wait(self, timeout: float) -> None:
        """It is over."""
        took_ns = time.thread_time_ns() - self._began_ns
        self.longest_ns = max(self.longest_ns, took_ns)
        self.sum_ns += took_ns


def hello() -> bytes:
    """The first message of a client, which makes the server sign."""
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["closed", "reset"])
async def test_many_half_handshakes_are_worked_on_in_turns(end: Callable[[socket.socket], None]) -> None:
    """Both the messages that come in one turn of the loop, and the ends."""
    tls = TlsOptions(certificate_file=str(CERTIFICATES / "server.pem"), key_file=str(CERTIFICATES / "server.key"))
    port = Port(ListenOptions(address="127.0.0.1", tls=tls, drain_timeout_s=0.0), SystemClock(), name="HTTP")
    stop, said = trio.Event(), hello()

    async def serve(wire: Wire, ends: Ends) -> None:
        raise AssertionError("no handshake is completed")

    async with trio.open_nursery() as nursery:
        address = await nursery.start(lambda task_status: serve_port(port, serve, stop=stop, task_status=task_status))
        with ExitStack() as stack:
            found = [await trio.to_thread.run_sync(socket.create_connection, (address.host, address.port)) for _ in range(COUNT)]
            connections = [stack.enter_context(each) for each in found]
            await until(lambda: len(port.connections) == COUNT)
            answered = partial(are_answered, connections)
            together_ns = await measure(connections, lambda connection: connection.sendall(said), answered)
            await measure(connections, end, lambda: not port.connections, together_ns)
        stop.set()


def are_answered(connections: list[socket.socket]) -> bool:
    poller = select.poll()
    for connection in connections:
        poller.register(connection, select.POLLIN)
    return len(poller.poll(0)) == len(connections)


async def until(ask: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not ask():
            await trio.lowlevel.checkpoint()


async def measure(
    connections: list[socket.socket],
    each: Callable[[socket.socket], object],
    is_over: Callable[[], bool],
    together_ns: int = 0,
) -> int:
    """Do this with each connection, in one turn of the loop. The time that the loop works; no turn has a large part of it, or of
    `together_ns`."""
    stretches = Stretches()
    for connection in connections:
        each(connection)
    trio.lowlevel.add_instrument(stretches)
    stretches.begin()
    await until(is_over)
    trio.lowlevel.remove_instrument(stretches)
    assert stretches.longest_ns < max(stretches.sum_ns, together_ns) / 5
    return stretches.sum_ns
