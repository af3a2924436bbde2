"""Methods but ModelInfer are imported for the first call of one of them."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from grpclib.const import Status

from tpy.frontends.grpc import own_services

from .fakes import port

LIVE = "ServerLive"


async def test_every_path_has_its_handler() -> None:
    async with port(late=True) as later, port() as at_once:
        assert later.handlers.keys() == at_once.handlers.keys()
        kinds = {path: type(handler) for path, handler in at_once.handlers.items()}
        assert {path: type(handler) for path, handler in later.handlers.items()} == kinds


async def test_first_calls_wait_and_are_answered() -> None:
    async with port(late=True) as server:
        calls = [server.begin(LIVE, b"") for _ in range(5)]
        stream = server.open("/grpc.health.v1.Health/Watch")
        stream.request(b"")
        for call in calls:
            await call.ended.wait()
            assert call.status is Status.OK
        await stream.wait_responses(1)
        assert (await server.call(LIVE)).status is Status.OK  # without waiting now


async def test_a_call_that_is_cancelled_meanwhile_asks_nothing() -> None:
    async with port(late=True) as server:
        call = server.begin("RepositoryModelLoad", b"\x12\x01m")
        call.cancel()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await server.call(LIVE)).status is Status.OK
        assert server.services.repository.loads == []


async def test_handlers_that_cannot_be_imported_are_an_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(parts: object) -> None:
        raise ImportError("No module named 'health'")

    async with port(late=True) as server:
        with monkeypatch.context() as broken:
            broken.setattr(own_services, "own_handlers", fail)
            assert (await server.call(LIVE)).status is Status.INTERNAL
        assert "No module named 'health'" in caplog.text
        assert (await server.call(LIVE)).status is Status.OK
