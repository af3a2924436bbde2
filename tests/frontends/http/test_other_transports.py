"""HTTP/2 and TLS, which are Hypercorn's; the stock client; the metrics port; addresses that cannot be had."""

from __future__ import annotations

import json
import ssl
from functools import partial
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import numpy as np
import pytest
import trio
import tritonclient.http

from tpy.errors import InvalidArgument, Unavailable
from tpy.frontends.http import HttpOptions
from tpy.frontends.metrics_http import serve_metrics

from .fakes import FakeServices, floats
from .harness import INFER, Client, get, infer, infer_body, options, post, running

CERTIFICATE = Path(__file__).parent / "loopback_certificate.pem"


async def ask_http2(stream: trio.abc.Stream, path: str, body: bytes) -> tuple[int, bytes]:
    """One POST over HTTP/2: status and body."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "t")]
    connection.send_headers(1, [*headers, ("content-length", str(len(body)))])
    connection.send_data(1, body, end_stream=True)
    await stream.send_all(connection.data_to_send())
    status, received = 0, b""
    while True:
        for event in connection.receive_data(await stream.receive_some()):
            if isinstance(event, h2.events.ResponseReceived):
                status = int(dict(event.headers)[b":status"])
            elif isinstance(event, h2.events.DataReceived):
                received += event.data
            elif isinstance(event, h2.events.StreamEnded):
                return status, received
        await stream.send_all(connection.data_to_send())


async def test_http2_with_prior_knowledge_gives_the_same_bytes() -> None:
    async with running(FakeServices()) as server:
        first = await server.connect()
        expected = (await first.ask(infer(1, 2))).body
        second = await server.connect()
        assert await ask_http2(second.stream, INFER, infer_body(1, 2).encode()) == (200, expected)
        third = await server.connect()
        assert (await ask_http2(third.stream, "/v2/models/x/infer", b""))[0] == 404


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
async def test_tls(protocol: str) -> None:
    async with running(FakeServices(), certificate_file=str(CERTIFICATE), key_file=str(CERTIFICATE)) as server:
        context = ssl.create_default_context(cafile=CERTIFICATE)
        context.set_alpn_protocols([protocol])
        plain = (await server.connect()).stream
        stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
        await stream.do_handshake()
        assert stream.selected_alpn_protocol() == protocol
        if protocol == "h2":
            status, body = await ask_http2(stream, INFER, infer_body(1).encode())
        else:
            answer = await Client(stream).ask(infer(1))  # type: ignore[arg-type]  # never half-closed here
            status, body = answer.status, answer.body
        assert status == 200
        assert json.loads(body)["outputs"][0]["data"] == [1.0]


async def test_a_certificate_needs_its_key() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(InvalidArgument, match="both"), flatten_subgroups=True):
        async with running(FakeServices(), certificate_file=str(CERTIFICATE)):
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


async def test_the_metrics_port() -> None:
    scrapes = 0

    async def render() -> bytes:
        nonlocal scrapes
        scrapes += 1
        if scrapes > 2:
            raise RuntimeError("a bug")
        return b"nv_inference_count 3\n"

    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_metrics, options(), render, stop=stop))
        client = Client(await trio.open_tcp_stream(address.host, address.port))
        for path in ("/metrics", "/metrics/"):
            answer = await client.ask(get(path))
            assert (answer.status, answer.body) == (200, b"nv_inference_count 3\n")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
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
