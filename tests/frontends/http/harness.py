"""A server on loopback or on an in-memory stream, and a client that speaks bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio
import trio.testing

from tests.streams import StreamWire
from tpy.clock import SystemClock
from tpy.frontends.http import BoundAddress, HttpOptions, serve_http
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.serving import create_port
from tpy.frontends.transport import Ends
from tpy.services import Services

from .fakes import FakeServices

INFER = "/v2/models/m/infer"


class Answer:
    """One parsed response."""

    def __init__(self, status_line: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status_line = status_line
        self.status = int(status_line.split(" ")[1])
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def document(self) -> object:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        document = self.document
        assert isinstance(document, dict)
        return str(document["error"])


class Client:
    """Bytes out, responses in, over any Trio stream."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._read = b""

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.stream.send_all(piece)

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            await self._more()
        found, _, self._read = self._read.partition(mark)
        return found

    async def _more(self) -> None:
        data = await self.stream.receive_some()
        if not data:
            raise EOFError(self._read)
        self._read += data

    async def answer(self, *, head_only: bool = False) -> Answer:
        """The next response, interim ones too."""
        lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        if head_only:
            length = 0
        while len(self._read) < length:
            await self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Answer(lines[0], headers, body)

    async def ask(self, *pieces: bytes) -> Answer:
        await self.send(*pieces)
        return await self.answer()

    async def expect_end(self) -> None:
        """The server closes, and has nothing more to say."""
        while data := await self.stream.receive_some():
            self._read += data
        assert self._read == b""


def post(path: str, body: bytes | str, *headers: str) -> bytes:
    """A POST with Content-Length."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def get(path: str, *headers: str) -> bytes:
    """A GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers]).encode() + b"\r\n\r\n"


def infer_body(*values: float, id: str | None = None) -> str:
    """The JSON of an inference of model m."""
    document: dict[str, object] = {"id": id} if id is not None else {}
    document["inputs"] = [{"name": "INPUT0", "shape": [1, len(values)], "datatype": "FP32", "data": list(values)}]
    return json.dumps(document)


def infer(*values: float, id: str | None = None) -> bytes:
    """A whole inference request for model m."""
    return post(INFER, infer_body(*values, id=id))


def options(**changes: object) -> HttpOptions:
    return HttpOptions(**{"address": "127.0.0.1", "port": 0, "drain_timeout_s": 5.0, **changes})  # type: ignore[arg-type]


class Running:
    """A server on loopback."""

    def __init__(self, address: BoundAddress, stop: trio.Event) -> None:
        self.address = address
        self.stop = stop
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        stream: trio.SocketStream
        if self.address.path:
            stream = await trio.open_unix_socket(self.address.path)
        else:
            stream = await trio.open_tcp_stream(self.address.host, self.address.port)
        self.clients.append(Client(stream))
        return self.clients[-1]


@asynccontextmanager
async def running(services: Services, **changes: object) -> AsyncIterator[Running]:
    """Serve on loopback inside the block; stopped in good order at its end."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_http, options(**changes), services, SystemClock(), stop=stop))
        server = Running(address, stop)
        try:
            yield server
        finally:
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + 10
            for client in server.clients:
                await trio.aclose_forcefully(client.stream)
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end by itself"


@asynccontextmanager
async def in_memory(services: FakeServices, **changes: object) -> AsyncIterator[Client]:
    """One connection on an in-memory stream, for virtual time."""
    port = create_port(options(**changes), services, SystemClock())
    assert port.application is not None
    port.application.load()  # virtual time waits for no thread
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Http1Connection(port, StreamWire(theirs), Ends()).run)
        yield Client(ours)
        nursery.cancel_scope.cancel()
