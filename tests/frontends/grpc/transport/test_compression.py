"""Compressed messages both ways: right, bounded, large ones in threads."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import numpy as np
import pytest
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.grpc.transport import StreamHandler, UnaryHandler, compression
from tpy.frontends.grpc.transport.compression import MessageCodec, decompress
from tpy.frontends.grpc.transport.core.calls import FramingFault
from tpy.units import KIB, MIB

from .harness import PATH, Reply, echo, echo_stream, in_memory
from .peer import message

HANDLERS = {PATH: UnaryHandler(echo), "/stream": StreamHandler(echo_stream)}
PACK = {"gzip": gzip.compress, "deflate": zlib.compress}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress}


def parsed(reply: Reply) -> list[tuple[int, bytes]]:
    """(flag, message) of a response, decompressed where it says so."""
    found = []
    at = 0
    while at < len(reply.body):
        length = int.from_bytes(reply.body[at + 1 : at + 5], "big")
        body = reply.body[at + 5 : at + 5 + length]
        flag = reply.body[at]
        found.append((flag, UNPACK[reply.headers["grpc-encoding"]](body) if flag else body))
        at += 5 + length
    return found


# Requests


@given(st.binary(max_size=2000), st.sampled_from(("gzip", "deflate")))
def test_what_was_packed_is_unpacked(body: bytes, encoding: str) -> None:
    assert decompress(memoryview(PACK[encoding](body)), "gzip", 2000) == body


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 100, 40 * KIB])
@pytest.mark.parametrize("path", [PATH, "/stream"])
async def test_compressed_requests(encoding: str, size: int, path: str) -> None:
    body = bytes(i * i % 251 for i in range(size))
    async with in_memory(HANDLERS) as served:
        client = served.client
        stream_id = await client.begin(path, ("grpc-encoding", encoding))
        await client.send(stream_id, message(PACK[encoding](body), compressed=True))
        if path != PATH:
            await client.send(stream_id, message(b"plain"))
        await client.send(stream_id, b"", end=True)
        reply = await client.answer(stream_id)
        assert reply.messages == [body] if path == PATH else [body, b"plain"]
        assert "grpc-encoding" not in reply.headers


def corrupt(body: bytes) -> bytes:
    return body[:-6] + bytes([body[-6] ^ 0xFF]) + body[-5:]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda body: body[:-1], "it is cut off"),
        (lambda body: b"", "it is cut off"),
        (lambda body: body + b"x", "there are bytes after its end"),
        (lambda body: b"nothing of the kind", "Error -3"),
        (corrupt, "Error -3"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/stream"])
async def test_corrupt_requests(encoding: str, change, why: str, path: str) -> None:  # type: ignore[no-untyped-def]
    async with in_memory(HANDLERS) as served:
        stream_id = await served.client.begin(path, ("grpc-encoding", encoding))
        await served.client.send(stream_id, message(change(PACK[encoding](b"hello" * 9)), compressed=True), end=True)
        reply = await served.client.answer(stream_id)
        assert reply.status == 13
        assert reply.text.startswith(f"failed to decompress a message as {encoding}: {why}")


@pytest.mark.parametrize("size", [101, 50 * MIB])
@pytest.mark.parametrize("path", [PATH, "/stream"])
async def test_a_request_that_unpacks_to_too_much(size: int, path: str) -> None:
    async with in_memory(HANDLERS, max_receive_bytes=100 if size == 101 else MIB) as served:
        stream_id = await served.client.begin(path, ("grpc-encoding", "gzip"))
        await served.client.send(stream_id, message(gzip.compress(bytes(size)), compressed=True), end=True)
        reply = await served.client.answer(stream_id)
        assert reply.status == 8
        assert "larger than max" in reply.text


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    bomb = memoryview(zlib.compress(bytes(200 * MIB), 9))
    tracemalloc.start()
    try:
        with pytest.raises(FramingFault) as caught:
            decompress(bomb, "deflate", 2 * MIB)
        assert caught.value.status is Status.RESOURCE_EXHAUSTED
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_what_is_large_may_not_be_compressed_too_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "GRPC_UNPACKED_BYTES_FREE", MIB)
    assert len(decompress(memoryview(gzip.compress(bytes(MIB))), "gzip", 64 * MIB)) == MIB
    with pytest.raises(FramingFault, match=r"compressed too well: .* bytes at most 100 for each are accepted") as caught:
        decompress(memoryview(gzip.compress(bytes(MIB + 1))), "gzip", 64 * MIB)
    assert caught.value.status is Status.RESOURCE_EXHAUSTED
    image = np.random.default_rng(1).integers(0, 4, 4 * MIB, np.uint8).tobytes()
    assert decompress(memoryview(gzip.compress(image)), "gzip", 64 * MIB) == image


def test_small_messages_that_become_large_go_to_a_thread() -> None:
    codec = MessageCodec("none", 64 * MIB)
    for size, now in ((60 * KIB, True), (70 * KIB, False), (900 * KIB, False)):
        unpacked = codec.unpack_now(memoryview(gzip.compress(bytes(size))), "gzip")
        assert (unpacked is not None) is now


# Responses


@pytest.mark.parametrize("level", ["low", "medium", "high"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [0, 1000, 100 * KIB])
@pytest.mark.parametrize("path", [PATH, "/stream"])
async def test_compressed_responses(level: str, encoding: str, size: int, path: str) -> None:
    async with in_memory(HANDLERS, compression=level) as served:
        client = served.client
        body = bytes(size)
        stream_id = await client.begin(path, ("grpc-accept-encoding", f"identity,{encoding}"))
        for at in range(0, size + 5, 60_000):
            piece = message(body)[at : at + 60_000]
            await client.send(stream_id, piece, end=at + 60_000 >= size + 5)
        reply = await client.answer(stream_id)
        assert reply.headers["grpc-encoding"] == encoding
        assert parsed(reply) == [(1, body)]
        assert len(reply.body) < 500
        assert reply.status == 0


@pytest.mark.parametrize(("level", "accepted"), [("none", "gzip"), ("high", "identity"), ("high", "br")])
async def test_responses_that_are_not_compressed(level: str, accepted: str) -> None:
    async with in_memory(HANDLERS, compression=level) as served:
        reply = await served.client.call(bytes(1000), ("grpc-accept-encoding", accepted))
        assert parsed(reply) == [(0, bytes(1000))]
        assert "grpc-encoding" not in reply.headers


async def test_the_limit_of_responses_counts_before_compression() -> None:
    async with in_memory(HANDLERS, compression="high", max_send_bytes=1000) as served:
        reply = await served.client.call(bytes(1001), ("grpc-accept-encoding", "gzip"))
        assert (reply.status, reply.text) == (8, "Sent message larger than max (1001 vs. 1000)")


async def test_a_large_response_of_a_call_that_is_cancelled_meanwhile() -> None:
    async with in_memory(HANDLERS, compression="high") as served:
        client = served.client
        stream_id = await client.begin(PATH, ("grpc-accept-encoding", "gzip"))
        await client.send(stream_id, message(bytes(60_000)), end=True)
        client.h2.reset_stream(stream_id)
        await client.flush()
        assert (await client.call(b"next")).status == 0


async def test_sending_at_once_leaves_large_messages_to_threads() -> None:
    accepted: list[bool] = []

    async def both(call) -> None:  # type: ignore[no-untyped-def]
        accepted.append(call.send_nowait((bytes(KIB),)))
        accepted.append(call.send_nowait((bytes(MIB),)))
        await call.send_message((bytes(MIB),))

    async with in_memory({PATH: StreamHandler(both)}, compression="low") as served:
        stream_id = await served.client.begin(PATH, ("grpc-accept-encoding", "deflate"))
        reply = await served.client.answer(stream_id)
        assert accepted == [True, False]
        assert parsed(reply) == [(1, bytes(KIB)), (1, bytes(MIB))]
