"""HTTP/1.1 edge cases on the wire: pipelining, partial reads, framing abuse, disconnects, limits."""

from __future__ import annotations

import json
import logging
import socket
import struct
from collections import Counter

import pytest
import trio
import trio.testing

from tpy import limits
from tpy.errors import Internal

from .fakes import FakeModel, FakeServices
from .harness import INFER, get, in_memory, infer, infer_body, post, running


async def test_a_request_may_arrive_in_any_two_pieces() -> None:
    services = FakeServices()
    whole = infer(1.5, id="a")
    async with in_memory(services) as client:
        for at in range(1, len(whole)):
            await client.send(whole[:at])
            await trio.testing.wait_all_tasks_blocked()
            answer = await client.ask(whole[at:])
            assert answer.status == 200, at
            assert answer.document["outputs"][0]["data"] == [1.5]  # type: ignore[index]


async def test_requests_may_arrive_byte_by_byte_with_every_kind_of_framing() -> None:
    services = FakeServices()
    chunked = b"POST %b HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    body = infer_body(2.5).encode()
    chunked += b"5;x=y\r\n" + body[:5] + b"\r\n%x\r\n" % len(body[5:]) + body[5:] + b"\r\n0\r\nTrailer: t\r\n\r\n"
    async with in_memory(services) as client:
        for request in (infer(2.5), chunked, post(INFER, infer_body(2.5), "Connection: Upgrade", "Upgrade: h2c"), infer(2.5)):
            for at in range(len(request)):
                await client.send(request[at : at + 1])
            assert (await client.answer()).document["outputs"][0]["data"] == [2.5]  # type: ignore[index]


async def test_pipelined_requests_run_together_and_are_answered_in_order() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1, id="1") + infer(2, id="2") + infer(3, id="3") + get("/v2/health/live") + infer(4, id="4"))
        await services.inference.wait_submitted(3)
        for submitted in reversed(services.inference.submitted[:3]):
            submitted.answer()
        assert [(await client.answer()).document["id"] for _ in range(3)] == ["1", "2", "3"]  # type: ignore[index]
        assert (await client.answer()).body == b""
        await services.inference.wait_submitted(4)
        services.inference.submitted[3].answer()
        assert (await client.answer()).document["id"] == "4"  # type: ignore[index]


async def test_a_request_for_quart_waits_for_those_before_it_and_holds_those_behind_it() -> None:
    services = FakeServices()
    services.inference.immediate = False
    services.repository.gate = trio.Event()
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1) + post("/v2/repository/models/x/load", "") + infer(2))
        await services.inference.wait_submitted(1)
        await trio.testing.wait_all_tasks_blocked()
        assert not services.repository.load_began.is_set()
        services.inference.submitted[0].answer()
        await services.repository.load_began.wait()
        assert len(services.inference.submitted) == 1
        services.repository.gate.set()
        await services.inference.wait_submitted(2)
        services.inference.submitted[1].answer()
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]


async def test_what_is_no_http_is_refused_behind_a_request_for_quart() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        await client.send(get("/v2/health/live") + b"no HTTP at all\r\n\r\n")
        assert [(await client.answer()).status for _ in range(2)] == [200, 400]
        await client.expect_end()


async def test_at_most_so_many_pipelined_requests_are_taken_up() -> None:
    services = FakeServices()
    services.inference.immediate = False
    wanted = 3 * limits.HTTP_PIPELINED_REQUESTS_MAX
    async with running(services) as server:
        client = await server.connect()
        await client.send(b"".join(infer(number) for number in range(wanted)))
        for number in range(wanted):
            await services.inference.wait_submitted(number + 1)
            assert len(services.inference.submitted) - number <= limits.HTTP_PIPELINED_REQUESTS_MAX
            services.inference.submitted[number].answer()
            answer = await client.answer()
            assert answer.document["outputs"][0]["data"] == [number]  # type: ignore[index]


async def test_a_client_that_closes_cancels_its_requests() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1) + infer(2))
        await services.inference.wait_submitted(2)
        await client.stream.aclose()
        with trio.fail_after(5):
            for submitted in services.inference.submitted:
                await submitted.ended.wait()


async def test_a_client_that_resets_cancels_its_requests() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1))
        await services.inference.wait_submitted(1)
        assert isinstance(client.stream, trio.SocketStream)
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.stream.aclose()
        with trio.fail_after(5):
            await services.inference.submitted[0].ended.wait()


async def test_a_client_that_resets_under_quart_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    services = FakeServices()
    async with running(services) as server:
        for _ in range(20):
            client = await server.connect()
            await client.send(post("/v2/repository/index", "{}"), infer(1), post("/v2/repository/index", "{}"))
            assert isinstance(client.stream, trio.SocketStream)
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []  # a slow stop is told


async def test_a_client_that_finished_sending_and_left_is_noticed_behind_a_request_for_quart() -> None:
    services = FakeServices()
    services.inference.immediate = False
    services.repository.gate = trio.Event()
    async with running(services) as server:
        client = await server.connect()
        await client.send(post("/v2/repository/models/m/load", "") + infer(1))
        await client.stream.send_eof()
        await services.repository.load_began.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        services.repository.gate.set()
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await client.stream.receive_some(1)  # and not what comes behind it
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.stream.aclose()
        with trio.fail_after(5):
            while not (services.inference.submitted and services.inference.submitted[0].cancelled):
                await trio.testing.wait_all_tasks_blocked()
                await trio.sleep(0.001)


async def test_a_client_that_only_finishes_sending_gets_its_answers() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1, id="1") + infer(2, id="2"))
        await client.stream.send_eof()
        await services.inference.wait_submitted(2)
        assert (await client.answer()).status == 100  # the probe
        for submitted in services.inference.submitted:
            assert not submitted.cancelled
            submitted.answer()
        assert [(await client.answer()).document["id"] for _ in range(2)] == ["1", "2"]  # type: ignore[index]
        await client.expect_end()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabc", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: -3\r\n\r\nabc", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 0x3\r\n\r\nabc", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length : 3\r\n\r\nabc", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: t\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\nHost: t\n\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: t\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: t\r\nX: \x00\r\n\r\n", 400),
        (b"GET /v2/\xc3\xa9 HTTP/1.1\r\nHost: t\r\n\r\n", 400),
        (b"BREW /v2 HTTP/1.1\r\nHost: t\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /v2\r\n\r\n", 505),
        (b"GET /v2 HTTP/2.0\r\nHost: t\r\n\r\n", 505),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: t\r\nX: " + b"a" * limits.HTTP_HEADER_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * limits.HTTP_HEADER_BYTES_MAX + b" HTTP/1.1\r\nHost: t\r\n\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 4 * limits.HTTP_HEADER_BYTES_MAX, 431),
        (b"\r\n" * limits.HTTP_HEADER_BYTES_MAX, 431),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\nabc", 400),
        (b"POST /v2 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nExpect: a miracle\r\n\r\n", 417),
    ],
)
async def test_what_http_forbids_is_refused_in_json_and_the_connection_closed(request_bytes: bytes, status: int) -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, request_bytes)
            answer = await client.answer()
        assert answer.status == status
        assert answer.error
        assert answer.headers["connection"] == "close"
        await client.stream.send_eof()
        await client.expect_end()


async def test_a_refusal_waits_for_the_answers_before_it() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(infer(1) + b"nonsense\r\n\r\n")
        await services.inference.wait_submitted(1)
        services.inference.submitted[0].answer()
        assert [(await client.answer()).status for _ in range(2)] == [200, 400]


@pytest.mark.parametrize("host", ["", "Host: a\r\nHost: b\r\n"])
async def test_a_request_needs_one_host_and_the_connection_lives_on(host: str) -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(f"GET /v2/health/live HTTP/1.1\r\n{host}\r\n".encode())
        assert answer.status == 400
        assert (await client.ask(get("/v2/health/live"))).status == 200


async def test_too_large_bodies_are_refused_and_the_connection_lives_on() -> None:
    async with running(FakeServices(), max_input_size=1000) as server:
        client = await server.connect()
        answer = await client.ask(post(INFER, b"x" * 1001))
        assert answer.status == 400
        assert answer.error == (
            "request JSON size of 1001 bytes exceeds the maximum allowed input size of 1000 bytes. "
            "Use --http-max-input-size to increase the limit."
        )
        assert (await client.ask(infer(1))).status == 200
        answer = await client.ask(post("/v2/repository/index", b" " * 500_000))
        assert answer.status == 400
        assert (await client.ask(infer(1))).status == 200


async def test_too_large_chunked_bodies_are_refused() -> None:
    async with running(FakeServices(), max_input_size=1000) as server:
        client = await server.connect()
        head = b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        answer = await client.ask(head + b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n")
        assert answer.status == 400
        assert "exceeds the maximum allowed input size" in answer.error
        assert answer.headers["connection"] == "close"


async def test_a_raw_body_that_is_too_large_is_refused_in_triton_s_words() -> None:
    """Those that Triton's own test of the limit looks for."""
    for length in ("Content-Length: 1001\r\n\r\n" + "x" * 1001, "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + "x" * 1001):
        async with running(FakeServices(), max_input_size=1000) as server:
            client = await server.connect()
            head = f"POST {INFER} HTTP/1.1\r\nHost: t\r\nInference-Header-Content-Length: 0\r\n"
            answer = await client.ask((head + length).encode())
            assert answer.status == 400
            assert answer.error == (
                "request binary size of 1001 bytes exceeds the maximum allowed value of 1000 bytes. "
                "Use --http-max-input-size to increase the limit."
            )


async def test_as_many_chunks_as_are_allowed_are_taken() -> None:
    head = b"POST /v2/repository/index HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"{}" + b" " * (limits.HTTP_CHUNKS_MAX - 2)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    async with running(FakeServices()) as server:
        client = await server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, head + chunks + b"0\r\n\r\n")
            answer = await client.answer()
        assert answer.status == 200


async def test_too_many_chunks_and_too_long_chunk_headers_are_refused() -> None:
    head = b"POST /v2 HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running(FakeServices()) as server:
        for abuse, said in (
            (b"1\r\nx\r\n" * (limits.HTTP_CHUNKS_MAX + 1), "Chunked request body exceeds maximum of 65536 non-empty chunks."),
            (b"1;" + b"a" * 4 * limits.HTTP_HEADER_BYTES_MAX, "chunk"),
        ):
            client = await server.connect()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, head + abuse)
                answer = await client.answer()
            assert answer.status == 400
            assert said in answer.error
            await client.stream.aclose()


async def test_http_1_0_and_connection_close() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (answer.status, answer.headers["connection"]) == (200, "keep-alive")
        body = infer_body(1)
        answer = await client.ask(f"POST {INFER} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        await client.expect_end()
        for request in (post(INFER, body, "Connection: close"), get("/v2/health/live", "Connection: close")):
            client = await server.connect()
            answer = await client.ask(request)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            await client.expect_end()


async def test_head_answers_as_get_without_a_body() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        await client.send(b"HEAD /v2 HTTP/1.1\r\nHost: t\r\n\r\n")
        answer = await client.answer(head_only=True)
        assert (answer.status, int(answer.headers["content-length"]) > 0) == (200, True)
        await client.send(b"HEAD %b HTTP/1.1\r\nHost: t\r\n\r\n" % INFER.encode())
        assert (await client.answer(head_only=True)).status == 405
        assert (await client.ask(infer(1))).status == 200


@pytest.mark.parametrize("target", ["http://any.host:80" + INFER + "?a=b", "/v2/models/%6d/inf%65r", INFER + "?x"])
async def test_absolute_and_escaped_targets_reach_inference(target: str) -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        assert (await client.ask(post(target, infer_body(1)))).status == 200
        answer = await client.ask(post("/v2/models/m%2Fx/infer", infer_body(1)))
        assert (answer.status, answer.error) == (404, "Not Found")


async def test_nothing_is_taken_up_behind_a_last_request_that_offers_to_change_the_protocol() -> None:
    services = FakeServices()
    services.inference.immediate = False
    last = post(INFER, infer_body(1), "Connection: Upgrade", "Upgrade: x").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with running(services) as server:
        client = await server.connect()
        await client.send(last + infer(2))
        await services.inference.wait_submitted(1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        [submitted] = services.inference.submitted
        submitted.answer()
        assert (await client.answer()).status == 200
        await client.expect_end()


async def test_offers_to_change_the_protocol_are_ignored() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
        assert (await client.ask(get("/v2/health/live", *offer))).status == 200
        assert (await client.ask(post(INFER, infer_body(1), *offer))).status == 200
        chunked = "\r\n".join([f"POST {INFER} HTTP/1.1", "Host: t", "Transfer-Encoding: chunked", *offer]).encode()
        body = infer_body(1).encode()
        assert (await client.ask(chunked + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))).status == 200
        assert (await client.ask(infer(1) + b"")).status == 200


async def test_failures_of_the_engine_leave_the_connection_usable() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        services.inference.raises = RuntimeError("a bug")
        answer = await client.ask(infer(1))
        assert answer.status == 500
        assert "a bug" not in answer.error
        services.inference.raises = MemoryError()
        answer = await client.ask(infer(1))
        assert (answer.status, answer.error) == (503, "the server has no memory for this request")
        services.inference.raises = None
        services.inference.immediate = False
        await client.send(infer(1))
        await services.inference.wait_submitted(1)
        services.inference.submitted[0].answer(Internal("model failed"))
        answer = await client.answer()
        assert (answer.status, answer.error) == (500, "model failed")
        answer = await client.ask(post(INFER, "{"))
        assert answer.status == 400
        assert answer.error.startswith("failed to parse the request JSON buffer")
        services.inference.immediate = True
        assert (await client.ask(infer(1))).status == 200


async def test_large_bodies_and_answers_cross_whole() -> None:
    services = FakeServices()
    count = 3_000_000
    head = json.dumps(
        {
            "inputs": [
                {"name": "INPUT0", "shape": [1, count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    ).encode()
    blob = bytes(range(256)) * (4 * count // 256)
    async with running(services) as server:
        client = await server.connect()
        request = post(INFER, head + blob, f"Inference-Header-Content-Length: {len(head)}")
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, request)
                answer = await client.answer()
            assert answer.status == 200
            assert answer.body[int(answer.headers["inference-header-content-length"]) :] == blob
        assert (await client.ask(infer(1))).status == 200


async def test_large_json_is_decoded_and_encoded_in_threads() -> None:
    services = FakeServices()
    values = [float(number % 7) for number in range(100_000)]
    async with running(services) as server:
        client = await server.connect()
        small_behind = infer(5, id="small")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, infer(*values, id="large") + small_behind)
            large, small = await client.answer(), await client.answer()
        assert large.document["outputs"][0]["data"] == values  # type: ignore[index]
        assert small.document["id"] == "small"  # type: ignore[index]


async def test_empty_lines_before_requests_are_passed_over() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        for _ in range(3):
            for _ in range(20):
                await client.send(b"\r\n" * 1000)
            assert (await client.ask(b"\r\n" + get("/v2"))).status == 200


async def test_many_requests_in_one_piece_are_answered_in_turns() -> None:
    """Also those that are answered at once: other connections have their turn in between."""

    class Turns(trio.abc.Instrument):
        number = 0

        def after_io_wait(self, timeout: float) -> None:
            self.number += 1

    turns, services = Turns(), FakeServices()
    taken: list[int] = []
    resolve = services.inference.resolve

    def noted(model_name: str, version: int | None = None) -> FakeModel:
        taken.append(turns.number)
        return resolve(model_name, version)

    services.inference.resolve = noted  # type: ignore[method-assign]
    trio.lowlevel.add_instrument(turns)
    async with running(services) as server:
        client = await server.connect()
        await client.send(post("/v2/models/nobody/infer", "") * 300)
        for _ in range(300):
            assert (await client.answer()).status == 404
    trio.lowlevel.remove_instrument(turns)
    assert len(taken) == 300
    assert max(Counter(taken).values()) <= 2 * limits.HTTP_PIPELINED_REQUESTS_MAX
