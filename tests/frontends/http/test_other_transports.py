"""TLS; HTTP/2, which is not served; the stock client; the metrics port; addresses that cannot be had."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
import tritonclient.http

from tests.streams import StreamWire
from tpy.clock import SystemClock
from tpy.errors import InvalidArgument, Unavailable
from tpy.frontends.http import HttpOptions
from tpy.frontends.http.serving import serve_http_port
from tpy.frontends.metrics_http import asks_for_openmetrics, metrics_port
from tpy.frontends.transport import TlsOptions, size_of, unsent
from tpy.limits import TLS_HANDSHAKE_S_MAX
from tpy.units import KIB

from .fakes import FakeServices, floats
from .harness import Client, Running, get, infer, options, post, running

CERTIFICATE = Path(__file__).parent / "loopback_certificate.pem"
TLS = TlsOptions(certificate_file=str(CERTIFICATE), key_file=str(CERTIFICATE))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("cut", [len(PREFACE), 10])
async def test_http2_is_not_served(cut: int) -> None:
    """As Triton 2.51, which closes the connection; ours gives a reason before."""
    async with running(FakeServices()) as server:
        client = await server.connect()
        await client.send(PREFACE[:cut])
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.send(PREFACE[cut:] + b"\0\0\0\4\0\0\0\0\0")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        await client.expect_end()


@asynccontextmanager
async def over_tls(server: Running, *protocols: str) -> AsyncIterator[Client]:
    """A client of a port that speaks TLS."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    if protocols:
        context.set_alpn_protocols(protocols)
    plain = (await server.connect()).stream
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    await stream.do_handshake()
    assert stream.selected_alpn_protocol() == ("http/1.1" if "http/1.1" in protocols else None)
    yield Client(stream)  # type: ignore[arg-type]  # never half-closed here


@pytest.mark.parametrize("protocols", [(), ("http/1.1",), ("h2", "http/1.1"), ("h2",)])
async def test_tls(protocols: tuple[str, ...]) -> None:
    """Inference takes the same path as in the clear, with the same bytes; other routes know that they are asked over TLS."""
    services = FakeServices()
    large = [float(number) for number in range(50_000)]
    async with running(services) as clear, running(services, tls=TLS) as server, over_tls(server, *protocols) as client:
        plain = await clear.connect()
        for request in (infer(1, 2), infer(*large), get("/v2"), get("/nowhere"), post("/v2/models/m/generate", "[")):
            expected, answer = await plain.ask(request), await client.ask(request)
            assert (answer.status, answer.headers, answer.body) == (expected.status, expected.headers, expected.body)
        await client.send(infer(3) + infer(4))
        assert [json.loads((await client.answer()).body)["outputs"][0]["data"] for _ in range(2)] == [[3.0], [4.0]]


async def test_a_tls_connection_is_closed_in_order() -> None:
    """The client can tell the end from an answer that was cut off (close_notify)."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    async with running(FakeServices(), tls=TLS) as server:
        strict = trio.SSLStream((await server.connect()).stream, context, server_hostname="localhost")
        await strict.send_all(infer(1).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        received = b""
        while data := await strict.receive_some():  # raises BrokenResourceError for an end without it
            received += data
        assert received.startswith(b"HTTP/1.1 200 ")
        await trio.aclose_forcefully(strict)


async def test_a_tls_connection_drains_with_its_port() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services, tls=TLS) as server, over_tls(server) as client:
        await client.send(infer(1))
        await services.inference.wait_submitted(1)
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        services.inference.submitted[0].answer()
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_a_handshake_that_does_not_end_does_not_hold_the_stop() -> None:
    async with running(FakeServices(), tls=TLS, drain_timeout_s=60.0) as server:
        silent = await server.connect()
        await silent.send(b"\x16\x03\x01")
        await trio.testing.wait_all_tasks_blocked(0.01)
        server.stop.set()
        with trio.fail_after(TLS_HANDSHAKE_S_MAX / 4):
            await silent.expect_end()


async def test_large_answers_over_tls_are_encrypted_in_parts() -> None:
    """Others have their turns in between."""
    sent: list[int] = []

    class Sink(trio.abc.SendStream):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            sent.append(len(data))

        async def wait_send_all_might_not_block(self) -> None:
            pass

        async def aclose(self) -> None:
            pass

    wire = StreamWire(trio.StapledStream(Sink(), trio.testing.MemoryReceiveStream()))
    pieces: list[bytes | memoryview] = [b"head", b"", floats(1_000_000).data, b"tail"]
    total = size_of(pieces)
    while pieces:
        pieces = unsent(pieces, await wire.send_some(pieces))
    assert sum(sent) == total
    assert max(sent) == 64 * KIB
    assert len(sent) == -(-total // (64 * KIB))


async def test_a_certificate_needs_its_key() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(InvalidArgument, match="TLS for HTTP needs both"), flatten_subgroups=True):
        async with running(FakeServices(), tls=TlsOptions(certificate_file=str(CERTIFICATE))):
            pass


async def test_the_stock_client_gets_right_answers() -> None:
    services = FakeServices()

    def use(url: str) -> None:
        with tritonclient.http.InferenceServerClient(url) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("m")
            assert client.get_server_metadata()["name"] == "triton"
            assert client.get_model_metadata("m", "1")["platform"] == "identity"
            assert client.get_model_config("m")["max_batch_size"] == 8
            assert client.get_inference_statistics("m")["model_stats"][0]["inference_count"] == 3
            assert [model["name"] for model in client.get_model_repository_index()] == ["broken", "m", "never"]
            client.load_model("m", config="{}", files={"file:1/model": b"content"})
            client.unload_model("m")
            assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
            assert client.get_trace_settings()["trace_rate"] == "1000"
            values = floats(1000).reshape(1, 1000)
            for binary in (True, False):
                tensor = tritonclient.http.InferInput("INPUT0", [1, 1000], "FP32")
                tensor.set_data_from_numpy(values, binary_data=binary)
                wanted = tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=binary)
                for compression in (None, "gzip", "deflate"):
                    result = client.infer(
                        "m",
                        [tensor],
                        outputs=[wanted],
                        request_id="7",
                        request_compression_algorithm=compression,
                        response_compression_algorithm=compression,
                    )
                    assert result.get_response()["id"] == "7"
                    assert np.array_equal(result.as_numpy("OUTPUT0"), values)
            text = tritonclient.http.InferInput("INPUT0", [1, 2], "BYTES")
            text.set_data_from_numpy(np.array([[b"a", b"\xff"]], dtype=object))
            assert client.infer("text", [text]).as_numpy("OUTPUT0").tolist() == [[b"a", b"\xff"]]
            best = client.infer("m", [tensor], outputs=[tritonclient.http.InferRequestedOutput("OUTPUT0", class_count=1)])
            assert best.as_numpy("OUTPUT0").tolist() == [[b"999.000000:999"]]

    async with running(services) as server:
        await trio.to_thread.run_sync(use, f"{server.address.host}:{server.address.port}")
    assert dict(services.repository.loads[0].files) == {"1/model": b"content"}


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""The header of Prometheus 2.42."""


@pytest.mark.parametrize(
    ("accept", "asks"),
    [
        (PROMETHEUS, True),
        ("Application/OpenMetrics-Text", True),
        ("application/openmetrics-text;q=0.5, text/plain;q=0.5", True),
        ("text/plain, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=high", False),
        ("text/plain;version=0.0.4;q=0.5", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_who_gets_openmetrics(accept: str, asks: bool) -> None:
    assert asks_for_openmetrics(accept) is asks


async def test_the_metrics_port() -> None:
    scrapes = 0

    async def render(*, openmetrics: bool) -> bytes:
        nonlocal scrapes
        scrapes += 1
        if scrapes > 3:
            raise RuntimeError("a bug")
        return b"# EOF\n" if openmetrics else b"nv_inference_count 3\n"

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_http_port, metrics_port(options(), render, SystemClock()), stop=stop))
        client = Client(await trio.open_tcp_stream(address.host, address.port))
        for path in ("/metrics", "/metrics/"):
            answer = await client.ask(get(path))
            assert (answer.status, answer.body) == (200, b"nv_inference_count 3\n")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        answer = await client.ask(get("/metrics", f"Accept: {PROMETHEUS}"))
        assert (answer.status, answer.body) == (200, b"# EOF\n")
        assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        for path in ("/", "/other/path"):
            answer = await client.ask(get(path))
            assert (answer.status, answer.body) == (200, b"")
        assert (await client.ask(post("/metrics", ""))).status == 405
        assert (await client.ask(get("/metrics"))).status == 500
        stop.set()
        await client.expect_end()
        await client.stream.aclose()


async def test_an_address_that_cannot_be_had_is_named() -> None:
    async with running(FakeServices()) as server:
        with pytest.RaisesGroup(
            pytest.RaisesExc(Unavailable, match=f"Socket '127.0.0.1:{server.address.port}' already in use"),
            flatten_subgroups=True,
        ):
            async with running(FakeServices(), port=server.address.port):
                pass


async def test_a_port_may_be_shared() -> None:
    async with (
        running(FakeServices(), reuse_port=True) as first,
        running(FakeServices(), reuse_port=True, port=first.address.port) as second,
    ):
        assert second.address == first.address


def test_options_are_tritons_by_default() -> None:
    defaults = HttpOptions()
    assert (defaults.address, defaults.port, defaults.max_input_size) == ("0.0.0.0", 8000, 64 * 1024 * 1024)
