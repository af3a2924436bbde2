"""Accepting connections while the system has no room for them."""

from __future__ import annotations

import errno
import os
import socket

import pytest
import trio
import trio.testing

from tpy.frontends.http.wire import SocketWireListener


class CrowdedSocket(socket.socket):
    """A listening socket whose first `failures` accepts find no file descriptor."""

    failures = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_connections_wait_until_there_is_a_file_descriptor_for_them(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with CrowdedSocket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        listening.failures = 100
        listener = SocketWireListener(listening)
        began_s = trio.current_time()
        wire = await listener.accept()
        assert 5 < trio.current_time() - began_s < 20
        assert wire.raw.getpeername() == client.getsockname()
        await wire.aclose()
        await listener.aclose()
    assert [record.getMessage() for record in caplog.records] == ["new HTTP connections wait: the system has no room for them"]
