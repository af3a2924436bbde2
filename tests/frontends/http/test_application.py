"""The application of a port is imported for the first request that needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import pytest
import trio
from quart_trio import QuartTrio

from tpy.clock import SystemClock
from tpy.frontends.http.app import bare_app
from tpy.frontends.http.application import Application
from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.frontends.http.options import RestrictedApi
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.serving import create_port, serve_http_port

from .fakes import FakeServices
from .harness import Client, get, infer, options, post

HEALTH = ("/v2/health/live", "/v2/health/ready", "/v2/health/ready?x=1")


class Served(NamedTuple):
    port: HttpPort
    address: str

    @property
    def application(self) -> Application:
        assert self.port.application is not None
        return self.port.application

    async def connect(self) -> Client:
        host, _, number = self.address.rpartition(":")
        return Client(await trio.open_tcp_stream(host, int(number)))


@asynccontextmanager
async def served(application: Application | None = None, **changes: object) -> AsyncIterator[Served]:
    """The HTTP API, or another application."""
    if application is None:
        port = create_port(options(**changes), FakeServices(), SystemClock())
    else:
        port = HttpPort(options=options(**changes), endpoint=None, clock=SystemClock(), application=application)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        yield Served(port, str(await nursery.start(partial(serve_http_port, port, stop=stop))))
        stop.set()


async def test_health_and_inference_need_no_application() -> None:
    async with served() as server:
        client = await server.connect()
        for path in HEALTH:
            answer = await client.ask(get(path))
            assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"", "text/plain")
        await client.send(get(HEALTH[0]).replace(b"GET", b"HEAD"))
        assert (await client.answer(head_only=True)).status == 200
        assert (await client.ask(infer(1))).status == 200
        assert not server.application.is_loaded
        await client.stream.aclose()


async def test_a_server_that_is_not_ready_says_so_without_it() -> None:
    async with served() as server:
        server.port.endpoint.services.repository.ready = False  # type: ignore[union-attr]
        client = await server.connect()
        assert (await client.ask(get("/v2/health/ready"))).status == 400
        assert (await client.ask(get("/v2/health/live"))).status == 200
        await client.stream.aclose()


async def test_requests_that_come_at_the_same_time_load_it_once() -> None:
    made = []

    def make() -> QuartTrio:
        made.append(1)
        return bare_app()

    application = Application(make, body_bytes_max=1)
    async with application.living():
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(application.ready)
        assert (application.is_loaded, made) == (True, [1])


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post("/v2/health/live", ""), 405),
        (get("/v2%2Fhealth/live"), 404),
        (get("//v2/health/live"), 404),
        (get("/v2/health/live/"), 404),
    ],
)
async def test_other_forms_of_health_are_the_applications(request_bytes: bytes, status: int) -> None:
    async with served() as server:
        client = await server.connect()
        assert (await client.ask(request_bytes)).status == status
        assert server.application.is_loaded
        await client.stream.aclose()


async def test_health_that_is_restricted_needs_its_header() -> None:
    async with served(restricted=(RestrictedApi(apis=frozenset({"health"}), header="key", value="secret"),)) as server:
        client = await server.connect()
        assert (await client.ask(get("/v2/health/live"))).status == 403
        assert (await client.ask(get("/v2/health/live", "key: secret"))).status == 200
        await client.stream.aclose()


async def test_an_application_that_cannot_be_imported_is_an_error_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    tried = []

    def make() -> QuartTrio:
        tried.append(1)
        if len(tried) == 1:
            raise ImportError("No module named 'quart'")
        return bare_app()

    async with served(application=Application(make, body_bytes_max=1)) as server:
        client = await server.connect()
        answer = await client.ask(get("/v2"))
        assert (answer.status, "log" in answer.error) == (500, True)
        assert "No module named 'quart'" in caplog.text
        assert (await client.ask(get("/v2"))).status == 404  # it is tried again, and has no routes
        await client.stream.aclose()


async def test_a_fault_in_what_the_port_answers_itself_is_an_error_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: HttpRequest) -> HttpReply | None:
        if request.path == "/broken":
            raise KeyError("a fault")
        return HttpReply()

    port = HttpPort(options=options(), endpoint=None, clock=SystemClock(), answer=answer)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        server = Served(port, str(await nursery.start(partial(serve_http_port, port, stop=stop))))
        client = await server.connect()
        assert (await client.ask(get("/broken"))).status == 500
        assert "a fault" in caplog.text
        assert (await client.ask(get("/whole"))).status == 200, "the port goes on"
        await client.stream.aclose()
        stop.set()
