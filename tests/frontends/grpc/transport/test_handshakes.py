"""TLS handshakes that stall: they hold up nobody, and end."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tpy.frontends.grpc.transport import UnaryHandler
from tpy.frontends.transport import TlsOptions, serving

from .harness import PATH, echo, running

CERTIFICATES = Path(__file__).parent / "certificates"
TLS = TlsOptions(certificate_file=str(CERTIFICATES / "server.pem"), key_file=str(CERTIFICATES / "server.key"))
_STALLED = 200


def _half_handshake() -> bytes:
    """The client's first flight, and not all of it."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()[:-10]


async def test_half_handshakes_hold_up_nobody_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some say nothing, some send half of what begins a handshake."""
    half = _half_handshake()
    async with running({PATH: UnaryHandler(echo)}, tls=TLS) as port:
        host, _, number = port.target.rpartition(":")
        where = (host, int(number))
        with ExitStack() as stack:
            stalled = [stack.enter_context(socket.create_connection(where)) for _ in range(_STALLED)]
            for connection in stalled[::2]:
                connection.sendall(half)
            context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
            context.set_alpn_protocols(["h2"])
            with trio.fail_after(20):
                plain = await trio.open_tcp_stream(*where)
                stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
                await stream.do_handshake()
                assert stream.selected_alpn_protocol() == "h2"
                await trio.aclose_forcefully(stream)
    monkeypatch.setattr(serving, "TLS_HANDSHAKE_S_MAX", 0.05)
    async with running({PATH: UnaryHandler(echo)}, tls=TLS) as port:
        host, _, number = port.target.rpartition(":")
        for sent in (b"", half):
            with trio.fail_after(20):
                late = await trio.open_tcp_stream(host, int(number))
                await late.send_all(sent)
                assert await late.receive_some(1) == b""  # the server has given it up
                await late.aclose()
