"""TLS: renegotiation, odd names, protocols that the port does not speak, records of a byte."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess

CERTIFICATES = Path(__file__).parents[1] / "frontends" / "grpc" / "transport" / "certificates"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PORTS = {"http": "http/1.1", "grpc": "h2"}
_PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("tls")
    write_models(home / "models")
    flags = [
        flag
        for port in PORTS
        for flag in (
            f"--{port}-use-ssl=true",
            f"--{port}-server-cert={CERTIFICATES / 'server.pem'}",
            f"--{port}-server-key={CERTIFICATES / 'server.key'}",
        )
    ]
    with ServerProcess(*flags, repositories=[home / "models"]) as running:
        yield running
        assert "unexpected" not in running.log


def address(server: ServerProcess, port: str) -> tuple[str, int]:
    host, _, number = (server.http if port == "http" else server.grpc).rpartition(":")
    return host, int(number)


def client(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, as Python cannot renegotiate")
@pytest.mark.parametrize("port", PORTS)
def test_no_client_renegotiates(server: ServerProcess, port: str) -> None:
    """Each time costs the server a signature, and the client nothing."""
    host, number = address(server, port)
    command = ["openssl", "s_client", "-connect", f"{host}:{number}", "-tls1_2", "-alpn", PORTS[port], "-no_ign_eof"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        said = b""
        while b"Extended master secret" not in said:  # the last line of the handshake's report
            said += (line := asked.stdout.readline())
            assert line, said
        asked.stdin.write(b"R\n")
        asked.stdin.flush()
        while b"RENEGOTIATING" not in said:
            said += (line := asked.stdout.readline())
            assert line, said
        rest = asked.communicate(timeout=_PATIENCE_S)[0]
    # Refused; a port that sends first, as gRPC's does, may have sent a record that the client did not expect meanwhile, or have
    # closed the connection before the client says anything. A second handshake would print its certificates.
    assert not rest or b"no renegotiation" in rest or b"unexpected record" in rest, rest
    assert b"Extended master secret" not in rest, rest


@pytest.mark.parametrize("name", ["*", "localhost.", "xn--a", "a" * 63 + "." + "b" * 63, "127.0.0.1"])
def test_any_name_is_served_by_the_one_certificate(server: ServerProcess, name: str) -> None:
    with (
        socket.create_connection(address(server, "http"), _PATIENCE_S) as plain,
        client("http/1.1").wrap_socket(plain, server_hostname=name) as secure,
    ):
        secure.sendall(GET)
        assert b" 200 OK" in secure.recv(1000)


@pytest.mark.parametrize("protocols", [("h3",), ("http/1.1",), ("spdy/1", "H2"), ()])
def test_grpc_needs_its_protocol(server: ServerProcess, protocols: tuple[str, ...]) -> None:
    with (
        socket.create_connection(address(server, "grpc"), _PATIENCE_S) as plain,
        contextlib.suppress(ConnectionError, ssl.SSLError),
        client(*protocols).wrap_socket(plain) as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert secure.recv(1000) == b""


def test_records_of_a_byte(server: ServerProcess) -> None:
    with socket.create_connection(address(server, "http"), _PATIENCE_S) as plain, client().wrap_socket(plain) as secure:
        for byte in GET:
            secure.sendall(bytes([byte]))
        assert b" 200 OK" in secure.recv(1000)
