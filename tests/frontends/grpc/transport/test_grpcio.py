"""A second, independent client: grpcio, over loopback, TLS and Unix sockets."""

from __future__ import annotations

import contextlib
import queue
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
import trio
from grpclib.const import Status

from tpy.errors import InvalidArgument, Unavailable
from tpy.frontends.grpc.transport import StreamCall, StreamHandler, UnaryCall, UnaryHandler
from tpy.frontends.transport import TlsOptions
from tpy.units import MIB

from .harness import Held, Running, echo, echo_stream, running

CERTIFICATES = Path(__file__).parent / "certificates"
TLS = {
    "certificate_file": str(CERTIFICATES / "server.pem"),
    "key_file": str(CERTIFICATES / "server.key"),
    "root_certificate_file": str(CERTIFICATES / "ca.pem"),
}
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
PATIENCE_S = 20
T = TypeVar("T")


async def sum_stream(call: StreamCall) -> None:
    total = 0
    while (body := await call.receive_message()) is not None:
        total += int(bytes(body))
    await call.send_message((b"%d" % total,))


async def count_stream(call: StreamCall) -> None:
    body = await call.receive_message()
    assert body is not None
    for number in range(int(bytes(body))):
        await call.send_message((b"%d" % number,))


def describe(call: UnaryCall, body: memoryview) -> None:
    seen = [f"{key}={value!r}" for key, value in call.metadata if key.startswith("x-")]
    call.reply((" ".join(seen).encode(),), [("peer", call.peer.rpartition(":")[0]), ("raw-bin", bytes(range(256)))])


def refuse(call: UnaryCall, body: memoryview) -> None:
    call.fail(Status.FAILED_PRECONDITION, f"no: {bytes(body).decode()}", [("why", "because")])


HANDLERS = {
    "/t.S/Echo": UnaryHandler(echo),
    "/t.S/Describe": UnaryHandler(describe),
    "/t.S/Refuse": UnaryHandler(refuse),
    "/t.S/Chat": StreamHandler(echo_stream),
    "/t.S/Sum": StreamHandler(sum_stream),
    "/t.S/Count": StreamHandler(count_stream),
}


async def with_channel(served: Running, use: Callable[[grpc.Channel], T], **options: object) -> T:
    """Run `use` in a thread with a channel to the server."""

    def work() -> T:
        with grpc.insecure_channel(served.target, options=UNLIMITED, **options) as channel:
            return use(channel)

    with trio.fail_after(2 * PATIENCE_S):
        return await trio.to_thread.run_sync(work)


def failure(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


async def test_unary_calls() -> None:
    def use(channel: grpc.Channel) -> None:
        ask = channel.unary_unary("/t.S/Echo")
        assert ask(b"hello", timeout=PATIENCE_S) == b"hello"
        assert ask(b"", timeout=PATIENCE_S) == b""
        futures = [ask.future(b"%d" % number) for number in range(300)]
        assert [future.result(PATIENCE_S) for future in futures] == [b"%d" % number for number in range(300)]

    async with running(HANDLERS) as served:
        await with_channel(served, use)


async def test_metadata() -> None:
    def use(channel: grpc.Channel) -> None:
        metadata = (("x-a", "1"), ("x-b-bin", b"\0\xff"), ("x-a", "2"))
        body, call = channel.unary_unary("/t.S/Describe").with_call(b"", metadata=metadata, timeout=PATIENCE_S)
        assert body == b"x-a='1' x-b-bin=b'\\x00\\xff' x-a='2'"
        trailing = {item.key: item.value for item in call.trailing_metadata()}
        assert trailing["peer"] == "127.0.0.1"
        assert trailing["raw-bin"] == bytes(range(256))

    async with running(HANDLERS) as served:
        await with_channel(served, use)


async def test_failures() -> None:
    def use(channel: grpc.Channel) -> None:
        error = failure(lambda: channel.unary_unary("/t.S/Refuse")("ü\n%".encode(), timeout=PATIENCE_S))
        assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "no: ü\n%")
        assert ("why", "because") in [tuple(item) for item in error.trailing_metadata()]
        error = failure(lambda: channel.unary_unary("/t.S/Nothing")(b"", timeout=PATIENCE_S))
        assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found: /t.S/Nothing")
        error = failure(lambda: channel.unary_unary("/t.S/Echo")(bytes(101), timeout=PATIENCE_S))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Received message larger than max (101 vs. 100)",
        )
        error = failure(lambda: channel.unary_unary("/t.S/Echo")(b"", metadata=[("x", "y" * 17_000)], timeout=PATIENCE_S))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert channel.unary_unary("/t.S/Echo")(b"fine", timeout=PATIENCE_S) == b"fine"

    async with running(HANDLERS, max_receive_bytes=100) as served:
        await with_channel(served, use)


async def test_streams() -> None:
    def use(channel: grpc.Channel) -> None:
        numbers = [b"%d" % number for number in range(500)]
        assert list(channel.stream_stream("/t.S/Chat")(iter(numbers), timeout=PATIENCE_S)) == numbers
        assert channel.stream_unary("/t.S/Sum")(iter(numbers), timeout=PATIENCE_S) == b"124750"
        assert list(channel.unary_stream("/t.S/Count")(b"500", timeout=PATIENCE_S)) == numbers

    async with running(HANDLERS) as served:
        await with_channel(served, use)


async def test_a_conversation() -> None:
    def use(channel: grpc.Channel) -> None:
        requests: queue.Queue[bytes | None] = queue.Queue()
        replies = channel.stream_stream("/t.S/Chat")(iter(requests.get, None), timeout=PATIENCE_S)
        for number in range(20):
            requests.put(b"%d" % number)
            assert next(replies) == b"%d" % number
        requests.put(None)
        assert list(replies) == []
        assert replies.code() is grpc.StatusCode.OK

    async with running(HANDLERS) as served:
        await with_channel(served, use)


@pytest.mark.parametrize("size", [1 * MIB, 12_000_000, 64 * MIB])
async def test_large_messages(size: int) -> None:
    body = bytes(range(256)) * (size // 256)

    def use(channel: grpc.Channel) -> None:
        assert channel.unary_unary("/t.S/Echo")(body, timeout=PATIENCE_S) == body
        assert list(channel.stream_stream("/t.S/Chat")(iter((body, b"x")), timeout=PATIENCE_S)) == [body, b"x"]

    async with running(HANDLERS) as served:
        await with_channel(served, use)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression])
@pytest.mark.parametrize("level", ["none", "low", "high"])
async def test_compression(compression: grpc.Compression, level: str) -> None:
    bodies = [bytes(100), bytes(300_000), bytes(range(256)) * 1000]

    def use(channel: grpc.Channel) -> None:
        for body in bodies:
            assert channel.unary_unary("/t.S/Echo")(body, timeout=PATIENCE_S) == body
        assert list(channel.stream_stream("/t.S/Chat")(iter(bodies), timeout=PATIENCE_S)) == bodies

    async with running(HANDLERS, compression=level) as served:
        await with_channel(served, use, compression=compression)


# Cancellation and deadlines


async def test_a_unary_call_that_is_cancelled() -> None:
    held = Held()
    go = threading.Event()

    def use(channel: grpc.Channel) -> None:
        future = channel.unary_unary("/t.S/Held").future(b"x")
        go.wait(PATIENCE_S)
        future.cancel()
        assert future.code() is grpc.StatusCode.CANCELLED
        assert channel.unary_unary("/t.S/Echo")(b"y", timeout=PATIENCE_S) == b"y"

    async with running({**HANDLERS, "/t.S/Held": UnaryHandler(held)}) as served, trio.open_nursery() as nursery:
        nursery.start_soon(with_channel, served, use)
        await held.wait(calls=1)
        go.set()
        await held.wait(cancelled=1)


async def test_a_stream_that_is_cancelled() -> None:
    ended = trio.Event()

    async def chat(call: StreamCall) -> None:
        try:
            await echo_stream(call)
        except trio.Cancelled:
            ended.set()
            raise

    def use(channel: grpc.Channel) -> None:
        requests: queue.Queue[bytes] = queue.Queue()
        replies = channel.stream_stream("/t.S/Chat")(iter(requests.get, None))
        requests.put(b"1")
        assert next(replies) == b"1"
        replies.cancel()
        requests.put(b"")

    async with running({"/t.S/Chat": StreamHandler(chat)}) as served:
        await with_channel(served, use)
        with trio.fail_after(PATIENCE_S):
            await ended.wait()


async def test_a_client_that_vanishes() -> None:
    held = Held()
    go = threading.Event()

    def use(channel: grpc.Channel) -> None:
        future = channel.unary_unary("/t.S/Held").future(b"x")
        go.wait(PATIENCE_S)
        assert not future.done()

    async with running({"/t.S/Held": UnaryHandler(held)}) as served, trio.open_nursery() as nursery:
        nursery.start_soon(with_channel, served, use)
        await held.wait(calls=1)
        go.set()
        await held.wait(cancelled=1)


async def test_a_deadline() -> None:
    held = Held()

    def use(channel: grpc.Channel) -> None:
        error = failure(lambda: channel.unary_unary("/t.S/Held")(b"x", timeout=0.05))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async with running({"/t.S/Held": UnaryHandler(held)}) as served:
        await with_channel(served, use)
        await held.wait(cancelled=1)


# The stop


async def test_the_stop_lets_calls_finish_and_refuses_new_ones() -> None:
    held = Held()
    results: list[object] = []

    def use(channel: grpc.Channel) -> None:
        future = channel.unary_unary("/t.S/Held").future(b"x")
        results.append(future.result(PATIENCE_S))
        error = failure(lambda: channel.unary_unary("/t.S/Echo")(b"x", timeout=PATIENCE_S))
        results.append(error.code())

    async with trio.open_nursery() as nursery, running({**HANDLERS, "/t.S/Held": UnaryHandler(held)}) as served:
        nursery.start_soon(with_channel, served, use)
        await held.wait(calls=1)
        served.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        held.calls[0].reply((b"done",))
    assert results == [b"done", grpc.StatusCode.UNAVAILABLE]


async def test_the_drain_ends_with_its_deadline() -> None:
    held = Held()
    seen: list[grpc.RpcError] = []

    def use(channel: grpc.Channel) -> None:
        seen.append(failure(lambda: channel.unary_unary("/t.S/Held")(b"x", timeout=PATIENCE_S)))

    handlers = {"/t.S/Held": UnaryHandler(held)}
    async with trio.open_nursery() as nursery, running(handlers, drain_timeout_s=0.1) as served:
        nursery.start_soon(with_channel, served, use)
        await held.wait(calls=1)
    assert held.cancelled == [0]
    assert seen[0].code() is grpc.StatusCode.UNAVAILABLE
    assert seen[0].details() == "the server closes the connection"


# Where


async def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):  # a file that was left does not matter
        async with running(HANDLERS, address=f"unix:{path}") as served:
            assert served.target == f"unix:{path}"
            _, call = await with_channel(
                served, lambda channel: channel.unary_unary("/t.S/Describe").with_call(b"", timeout=PATIENCE_S)
            )
            assert ("peer", "") in [tuple(item) for item in call.trailing_metadata()]
        assert not path.exists()


async def test_ipv6() -> None:
    try:
        async with running(HANDLERS, address="::1") as served:
            assert await with_channel(served, lambda channel: channel.unary_unary("/t.S/Echo")(b"x", timeout=PATIENCE_S)) == b"x"
    except* Unavailable:
        pytest.skip("no IPv6 here")


async def test_an_address_that_is_taken() -> None:
    async with running(HANDLERS) as served:
        with pytest.RaisesGroup(Unavailable, flatten_subgroups=True) as caught:
            async with running(HANDLERS, port=served.address.port):
                raise AssertionError
        (error,) = caught.value.exceptions
        assert str(error) == f"Socket '127.0.0.1:{served.address.port}' already in use"


async def test_a_port_that_is_shared() -> None:
    async with (
        running(HANDLERS, reuse_port=True) as first,
        running(HANDLERS, reuse_port=True, port=first.address.port) as second,
    ):
        assert second.address.port == first.address.port


# TLS


async def with_tls(served: Running, credentials: grpc.ChannelCredentials, use: Callable[[grpc.Channel], T]) -> T:
    def work() -> T:
        with grpc.secure_channel(f"localhost:{served.address.port}", credentials, options=UNLIMITED) as channel:
            return use(channel)

    with trio.fail_after(2 * PATIENCE_S):
        return await trio.to_thread.run_sync(work)


def credentials(*, client: str = "") -> grpc.ChannelCredentials:
    read = lambda name: (CERTIFICATES / name).read_bytes()  # noqa: E731
    if not client:
        return grpc.ssl_channel_credentials(read("ca.pem"))
    return grpc.ssl_channel_credentials(read("ca.pem"), read(f"{client}.key"), read(f"{client}.pem"))


def use_everything(channel: grpc.Channel) -> None:
    assert channel.unary_unary("/t.S/Echo")(b"hello", timeout=PATIENCE_S) == b"hello"
    body = bytes(3 * MIB)
    assert channel.unary_unary("/t.S/Echo")(body, timeout=PATIENCE_S) == body
    assert list(channel.stream_stream("/t.S/Chat")(iter((b"1", b"2")), timeout=PATIENCE_S)) == [b"1", b"2"]


def is_refused(channel: grpc.Channel) -> None:
    error = failure(lambda: channel.unary_unary("/t.S/Echo")(b"hello", timeout=PATIENCE_S))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_tls() -> None:
    async with running(HANDLERS, tls=TlsOptions(**TLS)) as served:
        await with_tls(served, credentials(), use_everything)
        await with_channel(served, is_refused)
        await with_tls(served, credentials(client="client"), use_everything)


async def test_mutual_tls() -> None:
    async with running(HANDLERS, tls=TlsOptions(**TLS, mutual=True)) as served:
        await with_tls(served, credentials(client="client"), use_everything)
        await with_tls(served, credentials(), is_refused)
        await with_tls(served, credentials(client="stranger"), is_refused)
        await with_channel(served, is_refused)


async def test_a_tls_client_without_tls() -> None:
    async with running(HANDLERS) as served:
        await with_tls(served, credentials(), is_refused)
        assert await with_channel(served, lambda channel: channel.unary_unary("/t.S/Echo")(b"x", timeout=PATIENCE_S)) == b"x"


@pytest.mark.parametrize("protocols", [[], ["http/1.1"]])
async def test_tls_without_http2_is_closed(protocols: list[str]) -> None:
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    if protocols:
        context.set_alpn_protocols(protocols)
    async with running(HANDLERS, tls=TlsOptions(**TLS)) as served:
        stream = await trio.open_ssl_over_tcp_stream("localhost", served.address.port, ssl_context=context, https_compatible=True)
        async with stream:
            with trio.fail_after(PATIENCE_S), contextlib.suppress(trio.BrokenResourceError):
                assert await stream.receive_some(100) == b""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key_file": ""}, "TLS for gRPC needs both the server's certificate file and its key file"),
        ({"root_certificate_file": "", "mutual": True}, "mutual TLS for gRPC needs the root certificate file"),
        ({"key_file": "/none"}, "--grpc-server-key: cannot read '/none': No such file or directory; expected a private key"),
        (
            {"key_file": str(CERTIFICATES / "client.key")},
            "--grpc-server-key: the key in '.*' does not belong to the certificate in",
        ),
        ({"root_certificate_file": str(CERTIFICATES / "server.key")}, "--grpc-root-cert: expected a certificate in PEM"),
    ],
)
async def test_tls_that_cannot_be_served(changes: dict[str, object], text: str) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(InvalidArgument, match=text), flatten_subgroups=True):
        async with running(HANDLERS, tls=TlsOptions(**{**TLS, **changes})):  # type: ignore[arg-type]
            raise AssertionError


@pytest.mark.parametrize("changes", [{"max_receive_bytes": 0}, {"header_bytes_max": 2**31}, {"keepalive_time_s": 0.0}])
async def test_options_that_cannot_be_served(changes: dict[str, object]) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(InvalidArgument, match=next(iter(changes))), flatten_subgroups=True):
        async with running(HANDLERS, **changes):
            raise AssertionError
