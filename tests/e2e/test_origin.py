"""The origin of requests in the access log and traces: over HTTP and gRPC, also in frontend processes, over
IPv6, and behind a balancer."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

BODY = b'{"id": "%s", "inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Logged:
    """A server with an access log in JSON, and trace files."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server = server
        self._folder = folder

    def line(self, request_id: str) -> dict[str, Any]:
        """The only line of this request."""
        rows = wait_until(lambda: [row for row in self._rows() if row["id"] == request_id])
        assert len(rows) == 1
        return rows[0]

    def last(self) -> dict[str, Any]:
        return self._rows()[-1]

    def _rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / "access.log").read_text().splitlines()]

    def trace(self, request_id: str) -> set[str]:
        """The names of the moments of a request."""

        def moments() -> set[str]:
            rows = json.loads((self._folder / "trace.json").read_text() or "[]") if (self._folder / "trace.json").exists() else []
            ids = [row["id"] for row in rows if row.get("request_id") == request_id]
            return {each["name"] for row in rows if row["id"] in ids for each in row.get("timestamps", ())}

        return wait_until(moments)


@pytest.fixture(scope="module", params=[0, 1], ids=["one process", "frontend process"])
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("logged")
    ModelFolder(folder / "models", "m").config(AFFINE_CONFIG).affine(1, 2)
    settings = (f"triton,file={folder / 'trace.json'}", "level=TIMESTAMPS", "rate=1")
    flags = [
        f"--access-log={folder / 'access.log'}",
        "--access-log-format=json",
        f"--frontend-processes={request.param}",
        "--http-address=::1",
        "--metrics-address=127.0.0.1",
        "--proxy-protocol-grpc=true",
        *(word for setting in settings for word in ("--trace-config", setting)),
    ]
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:
        yield Logged(server, folder)


def post(address: str, request_id: str, model: str = "m", **headers: str) -> int:
    request = urllib.request.Request(f"http://{address}/v2/models/{model}/infer", BODY % request_id.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status  # type: ignore[no-any-return]
    except HTTPError as error:
        return error.code


def test_a_request_over_http_and_ipv6(logged: Logged) -> None:
    address = logged.server.http
    assert address.startswith("[::1]:")
    assert post(address, "six", traceparent=f"00-{TRACE}-00f067aa0ba902b7-01") == 200
    line = logged.line("six")
    assert line["peer"].startswith("[::1]:")
    shown = {name: line[name] for name in ("protocol", "model", "version", "status", "responses", "trace_id")}
    assert shown == {"protocol": "http", "model": "m", "version": 1, "status": "OK", "responses": 1, "trace_id": TRACE}
    assert line["request_bytes"] == len(BODY % b"six")
    assert line["response_bytes"] > 50
    assert line["total_us"] >= line["infer_us"] > 0
    assert {"HTTP_RECV_START", "COMPUTE_START", "HTTP_SEND_END"} <= logged.trace("six")


def test_refused_requests_have_lines(logged: Logged) -> None:
    assert post(logged.server.http, "no", "nobody") == 404
    line = wait_until(lambda: found if (found := logged.last())["model"] == "nobody" else None)
    assert line["peer"].startswith("[::1]:")
    assert (line["protocol"], line["status"], line["error"]) == (
        "http",
        "Not found",
        "Request for unknown model: 'nobody' is not found",
    )
    wrong = (BODY % b"no").replace(b"[1, 3]", b"[1, 4]")
    request = urllib.request.Request(f"http://{logged.server.http}/v2/models/m/infer", wrong)
    with pytest.raises(HTTPError):
        urllib.request.urlopen(request, timeout=30)
    line = wait_until(lambda: found if (found := logged.last())["model"] == "m" and found["status"] != "OK" else None)
    assert (line["status"], line["peer"].startswith("[::1]:")) == ("Invalid argument", True)


def test_what_no_model_had_is_in_the_metrics(logged: Logged) -> None:
    """Frontend processes tell the engine."""
    before = refused(logged.server, "NOT_FOUND")
    assert post(logged.server.http, "no", "nobody") == 404
    wait_until(lambda: refused(logged.server, "NOT_FOUND") == before + 1)


def refused(server: ServerProcess, reason: str, key: str = "") -> int:
    request = urllib.request.Request(f"http://{server.metrics}/metrics", headers={"X-API-Key": key})
    with urllib.request.urlopen(request, timeout=30) as page:
        found = re.search(rf'^tpy_requests_refused_total{{reason="{reason}"}} (\d+)$', page.read().decode(), re.MULTILINE)
    assert found
    return int(found[1])


def test_nobody_says_who_he_is(logged: Logged) -> None:
    """Headers of proxies are not believed, and no line of the PROXY protocol where the flag is not given."""
    forwarded = {"X-Forwarded-For": "192.0.2.7", "X-Real-IP": "192.0.2.7", "Forwarded": "for=192.0.2.7"}
    assert post(logged.server.http, "spoofed", **forwarded) == 200
    assert logged.line("spoofed")["peer"].startswith("[::1]:")
    host, _, port = logged.server.http.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=20) as connection:
        connection.sendall(b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 8000\r\nGET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_who_is_behind_a_balancer(logged: Logged, balancer: str) -> None:
    with tritonclient.grpc.InferenceServerClient(balancer) as client:
        tensor = tritonclient.grpc.InferInput("INPUT", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
        client.infer("m", [tensor], request_id="balanced", headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
        with pytest.raises(InferenceServerException):
            client.infer("nobody", [tensor])
    line = logged.line("balanced")
    assert (line["peer"], line["protocol"], line["trace_id"]) == ("192.0.2.7:50000", "grpc", TRACE)
    assert {"GRPC_WAITREAD_START", "COMPUTE_START", "GRPC_SEND_END"} <= logged.trace("balanced")


def test_without_the_balancers_header_nothing_is_served(logged: Logged) -> None:
    host, _, port = logged.server.grpc.rpartition(":")
    for said in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"PROXY TCP4 x y 1 2\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(said)
            with contextlib.suppress(ConnectionResetError):  # there were bytes that nobody has read
                assert connection.recv(1000) == b""
    assert "192.0.2" not in logged.server.log


@pytest.fixture
def balancer(logged: Logged) -> Iterator[str]:
    """The address of a relay that says for whom it connects."""
    host, _, port = logged.server.grpc.rpartition(":")
    listening = socket.create_server(("127.0.0.1", 0))

    def relay(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def serve() -> None:
        with listening.accept()[0] as near, socket.create_connection((host, int(port))) as far:
            far.sendall(b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 8001\r\n")
            back = threading.Thread(target=relay, args=(far, near))
            back.start()
            relay(near, far)
            back.join()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    thread.join()
    listening.close()
