"""Windows in both directions: nothing is sent or taken beyond them, and nothing is lost behind them."""

from __future__ import annotations

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

from tpy.frontends.grpc.transport.core.calls import OK, RESPONSE
from tpy.frontends.grpc.transport.core.http2 import ConnectionEnded
from tpy.http2 import codes
from tpy.http2.codes import Http2Code
from tpy.limits import GRPC_OUTPUT_BYTES_MAX
from tpy.units import KIB, MIB

from .peer import Peer, data, rst_stream, settings, window_update


def sent(peer: Peer, stream_id: int) -> tuple[int, bool]:
    """Returns the number of bytes of a response that come out now, and True if its end does."""
    frames = [part for part in peer.frames() if part.stream_id == stream_id]
    size = sum(len(part.data) for part in frames if isinstance(part, DataFrame))
    return size, any("END_STREAM" in part.flags for part in frames if isinstance(part, HeadersFrame))


# What we send


def test_the_window_of_a_stream_holds_its_data_back() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 10)), peer.request(1), peer.request(3))
    peer.frames()
    peer.server.respond(1, RESPONSE, (b"0123456789abcde",), 15, OK)
    assert sent(peer, 1) == (10, False)
    peer.server.respond(3, RESPONSE, (b"0123456789",), 10, OK)
    assert sent(peer, 3) == (10, True)
    assert peer.server.queued_bytes(1) == 5
    peer.send(window_update(1, 3))
    assert sent(peer, 1) == (3, False)
    peer.send(window_update(1, 2))
    assert sent(peer, 1) == (2, True)
    assert peer.server.open_streams == 0


def test_an_end_without_data_needs_no_window() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), peer.request(1))
    peer.server.finish(1, OK)
    assert sent(peer, 1) == (0, True)


def test_the_window_of_the_connection_holds_all_back() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, MIB)), peer.request(1), peer.request(3))
    peer.frames()
    for stream_id in (1, 3):
        peer.server.respond(stream_id, RESPONSE, (bytes(60_000),), 60_000, OK)
    frames = [part for part in peer.frames() if isinstance(part, DataFrame)]
    assert sum(len(part.data) for part in frames) == 65535
    assert peer.server.queued_bytes(1) + peer.server.queued_bytes(3) == 120_000 - 65535
    peer.send(window_update(0, MIB))
    peer.frames()
    assert peer.server.open_streams == 0


def test_streams_take_turns() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, MIB)), *(peer.request(stream_id) for stream_id in (1, 3, 5)))
    peer.server.respond(1, RESPONSE, (bytes(65535),), 65535, OK)  # uses the connection's window up
    for stream_id in (3, 5):
        peer.server.respond(stream_id, RESPONSE, (bytes(40_000),), 40_000, OK)
    peer.frames()
    peer.send(window_update(0, MIB))
    order = [part.stream_id for part in peer.frames() if isinstance(part, DataFrame)]
    assert order == [3, 5, 3, 5, 3, 5]


def test_a_smaller_initial_window_makes_windows_negative() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.server.send_headers(1, RESPONSE)
    peer.server.send_data(1, (bytes(60_000),), 60_000)
    peer.frames()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)))
    peer.server.send_data(1, (b"abc",), 3)
    peer.server.finish(1, OK)
    assert sent(peer, 1) == (0, False)
    peer.send(window_update(1, 60_000))
    assert sent(peer, 1) == (0, False)
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 2)))
    assert sent(peer, 1) == (2, False)
    peer.send(window_update(1, 1))
    assert sent(peer, 1) == (1, True)


def test_a_larger_initial_window_lets_all_streams_go_on() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), peer.request(1), peer.request(3))
    for stream_id in (1, 3):
        peer.server.respond(stream_id, RESPONSE, (b"abc",), 3, OK)
    peer.frames()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 100)))
    assert [part.stream_id for part in peer.frames() if isinstance(part, DataFrame)] == [1, 3]
    assert peer.server.open_streams == 0


def test_settings_are_acknowledged_before_what_they_allow() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), peer.request(1))
    peer.server.respond(1, RESPONSE, (b"abc",), 3, OK)
    peer.frames()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 100)))
    assert [type(part).__name__ for part in peer.frames()] == ["SettingsFrame", "DataFrame", "HeadersFrame"]


def test_a_stream_that_waits_for_the_connection_may_lose_its_window() -> None:
    peer = Peer()
    peer.send(peer.request(1), peer.request(3))
    peer.server.respond(1, RESPONSE, (bytes(65535),), 65535, OK)
    peer.server.respond(3, RESPONSE, (b"abc",), 3, OK)
    peer.frames()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), window_update(0, 100))
    assert not any(isinstance(part, DataFrame) for part in peer.frames()), "not even an empty one"
    peer.send(window_update(3, 3))
    assert sent(peer, 3) == (3, True)


def test_only_so_much_waits_to_be_taken() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 2**31 - 1)), window_update(0, 2**31 - 1 - 65535), peer.request(1))
    peer.frames()
    body = memoryview(bytes(20 * MIB))
    peer.server.respond(1, RESPONSE, (b"12345", body), 20 * MIB + 5, OK)
    taken = 0
    while peer.server.has_output:
        pieces = peer.server.take_output()
        size = sum(map(len, pieces))
        assert size < GRPC_OUTPUT_BYTES_MAX + 64 * KIB
        taken += size
        # Large data is never copied on its way.
        assert all(piece.obj is body.obj for piece in pieces if isinstance(piece, memoryview) and len(piece) > 16)
    assert taken > 20 * MIB
    assert peer.server.open_streams == 0


def test_a_reset_drops_what_is_queued() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), peer.request(1))
    peer.server.respond(1, RESPONSE, (bytes(1000),), 1000, OK)
    peer.frames()
    peer.send(rst_stream(1), settings((codes.INITIAL_WINDOW_SIZE, 5000)))
    assert [part for part in peer.frames() if isinstance(part, DataFrame)] == []


def test_our_reset_drops_what_is_queued() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), peer.request(1))
    peer.server.send_data(1, (bytes(1000),), 1000)
    peer.frames()
    peer.server.reset(1, Http2Code.CANCEL)
    (reset,) = peer.frames()
    assert isinstance(reset, RstStreamFrame)
    peer.server.reset(1, Http2Code.CANCEL)
    peer.send(window_update(0, 5000))
    assert peer.frames() == []


# What we take

WINDOWS = {"stream_window": 100, "connection_window": 300, "frame_bytes_max": 16384}


def updates(peer: Peer) -> list[tuple[int, int]]:
    return [(part.stream_id, part.window_increment) for part in peer.frames() if isinstance(part, WindowUpdateFrame)]


def test_more_than_the_window_of_a_stream_resets_it() -> None:
    peer = Peer(**WINDOWS)
    peer.send(
        peer.headers(1), data(1, bytes(100)), peer.headers(3), data(3, bytes(101)), peer.headers(5), data(5, bytes(9), end=True)
    )
    assert peer.resets() == {3: Http2Code.FLOW_CONTROL_ERROR}
    assert peer.body(1) == (bytes(100), False)
    assert peer.body(5) == (bytes(9), True)


def test_more_than_the_window_of_the_connection_ends_it() -> None:
    peer = Peer(stream_window=1000, connection_window=70_000)
    for stream_id in range(1, 141, 2):
        peer.send(peer.headers(stream_id), data(stream_id, bytes(1000)))
    assert peer.ended_with() is None
    (_, event) = peer.send(peer.headers(141), data(141, b"x"))
    assert isinstance(event, ConnectionEnded)
    assert event.code is Http2Code.FLOW_CONTROL_ERROR


def test_what_was_used_is_the_peers_again() -> None:
    peer = Peer(**WINDOWS)
    peer.send(peer.headers(1), data(1, bytes(60)))
    peer.server.credit(1, 40)
    assert updates(peer) == []
    peer.server.credit(1, 20)
    assert updates(peer) == [(1, 60)]
    peer.send(data(1, bytes(40)))
    peer.server.credit(1, 40)
    assert updates(peer) == [(0, 100)]


def test_an_ended_stream_needs_no_window() -> None:
    peer = Peer(**WINDOWS)
    peer.send(peer.headers(1), data(1, bytes(60), end=True))
    peer.server.credit(1, 60)
    assert updates(peer) == []


@pytest.mark.parametrize("end", ["client", "server", "answer", "answer after credit", "break"])
def test_a_closed_stream_gives_the_connections_window_back(end: str) -> None:
    peer = Peer(**WINDOWS)
    total = 0
    for stream_id in range(1, 101, 2):
        peer.send(peer.headers(stream_id), data(stream_id, bytes(80), end=end.startswith("answer")))
        if end == "client":
            peer.send(rst_stream(stream_id))
        elif end == "server":
            peer.server.reset(stream_id, Http2Code.CANCEL)
        elif end == "break":
            peer.send(window_update(stream_id, 0))
        else:
            if end == "answer after credit":
                peer.server.credit(stream_id, 80)
            peer.server.respond(stream_id, RESPONSE, (b"",), 0, OK)
        peer.server.credit(stream_id, 80)  # late, and of no effect
        total += sum(size for stream_id, size in updates(peer) if stream_id == 0)
    assert 50 * 80 - 75 <= total <= 50 * 80
    assert not peer.server.is_closed


def test_ignored_data_and_padding_give_the_window_back() -> None:
    peer = Peer(**WINDOWS)
    peer.send(peer.headers(1))
    peer.server.finish(1, OK)
    peer.frames()
    peer.send(data(1, bytes(50)), data(1, bytes(50)))
    assert updates(peer) == [(0, 100)]
    peer.send(peer.headers(3))
    for _ in range(3):
        peer.send(b"\0\0\x50" + bytes([codes.DATA, codes.PADDED, 0, 0, 0, 3, 74]) + b"12345" + bytes(74))
        peer.server.credit(3, 5)
    assert peer.body(3) == (b"12345" * 3, False)
    found = updates(peer)
    assert [size for stream_id, size in found if stream_id == 3] == [75, 80, 80]
    assert sum(size for stream_id, size in found if stream_id == 0) >= 3 * 80 - 75
