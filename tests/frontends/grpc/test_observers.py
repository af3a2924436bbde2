"""Calls over gRPC as observers see them."""

from __future__ import annotations

import trio
import trio.testing

from tests.frontends.observing import Finished

from .fakes import infer_request, port

UNKNOWN = "Request for unknown model: 'x' is not found"


async def test_unary_calls() -> None:
    watcher = Finished()
    async with port() as server:
        server.services.observers.add(watcher)
        message = infer_request(id="1").SerializeToString()
        call = server.begin("ModelInfer", message)
        server.begin("ModelInfer", infer_request("x").SerializeToString())
        server.services.inference.immediate = False
        server.begin("ModelInfer", message).cancel()
        first = watcher.records[0]
        assert (first.request_bytes, first.response_bytes, first.peer) == (len(message), len(call.reply_bytes), call.peer)
        assert server.services.inference.submitted[0].request.record is first
    assert [shown[0] for shown in watcher.shown] == ["grpc"] * 3
    assert server.services.refusals.counts["NOT_FOUND"] == 1
    assert [shown[2:] for shown in watcher.shown] == [("", ""), ("Not found", UNKNOWN), ("Cancelled", "")]


async def test_requests_of_a_stream_are_finished_when_their_turn_has_come() -> None:
    watcher = Finished()
    async with port() as server:
        server.services.observers.add(watcher)
        inference = server.services.inference
        inference.immediate = False
        call = server.open()
        for name in "12":
            call.request(infer_request(id=name).SerializeToString())
        call.request(infer_request("x").SerializeToString())
        await inference.wait_submitted(2)
        await trio.testing.wait_all_tasks_blocked()
        first, second = inference.submitted
        second.answer()
        assert watcher.records == []
        first.answer()
        assert [record.protocol for record in watcher.records] == ["grpc-stream"] * 3
        assert [record.status for record in watcher.records] == ["", "", "Not found"]
        assert [record.response_bytes for record in watcher.records] == [len(message) for message in call.responses]
        assert watcher.records[:2] == [first.request.record, second.request.record]
        assert server.services.refusals.counts["NOT_FOUND"] == 1
        call.request(infer_request(id="3").SerializeToString())
        await inference.wait_submitted(3)
        call.cancel()
    assert watcher.records[-1].status == "Cancelled"
