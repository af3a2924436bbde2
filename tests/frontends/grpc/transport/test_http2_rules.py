"""RFC 9113 on frames and streams: each rule, kept and broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hyperframe.frame import (
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tpy.frontends.grpc.transport.core.calls import OK, RESPONSE
from tpy.frontends.grpc.transport.core.http2 import ConnectionEnded, DataArrived, RequestBegan, StreamEnded
from tpy.http2 import codes
from tpy.http2.codes import Http2Code
from tpy.units import KIB, MIB

from .peer import (
    GREETING,
    HEADERS,
    PATH,
    Peer,
    data,
    frame,
    message,
    ping,
    rst_stream,
    settings,
    window_update,
)

FRAME_MAX = MIB
"""The settings that we announce."""


def changed(**fields: str | None) -> list[tuple[str, str]]:
    """HEADERS with fields changed, added (in front: pseudo-header fields) or taken out; `_` stands for `-`, `p_` for `:`."""
    wanted = {name.replace("p_", ":").replace("_", "-"): value for name, value in fields.items()}
    kept = [(name, wanted.pop(name, value)) for name, value in HEADERS]
    added = sorted(wanted.items(), key=lambda pair: not pair[0].startswith(":"))
    pseudo = [pair for pair in added if pair[0].startswith(":")]
    regular = [pair for pair in added if not pair[0].startswith(":")]
    return [(name, value) for name, value in (*pseudo, *kept, *regular) if value is not None]


# The beginning


def test_the_server_sends_its_settings_first() -> None:
    peer = Peer(greeted=False, streams_max=7)
    first, second = peer.frames()
    assert isinstance(first, SettingsFrame)
    assert first.settings == {
        codes.MAX_CONCURRENT_STREAMS: 7,
        codes.INITIAL_WINDOW_SIZE: 4 * MIB,
        codes.MAX_FRAME_SIZE: FRAME_MAX,
        codes.MAX_HEADER_LIST_SIZE: 16 * KIB,
    }
    assert isinstance(second, WindowUpdateFrame)
    assert (second.stream_id, second.window_increment) == (0, 64 * MIB - 65535)


def test_a_window_of_the_usual_size_is_not_widened() -> None:
    (only,) = Peer(greeted=False, connection_window=codes.WINDOW_DEFAULT).frames()
    assert isinstance(only, SettingsFrame)


def test_the_rest_of_a_frame_for_a_stream_that_is_gone_is_passed_over() -> None:
    peer = Peer()
    whole = data(1, message(b"x" * 100), end=True)
    peer.send(peer.headers(1), whole[:50])
    peer.server.reset(1, Http2Code.CANCEL)
    before = len(peer.events)
    peer.send(whole[50:], peer.request(3))
    assert [event.stream_id for event in peer.events[before:] if isinstance(event, DataArrived)] == [3]
    assert peer.ended_with() is None


def test_settings_are_acknowledged() -> None:
    peer = Peer(greeted=False)
    peer.frames()
    peer.send(GREETING)
    (answer,) = peer.frames()
    assert isinstance(answer, SettingsFrame)
    assert "ACK" in answer.flags
    assert not peer.server.is_settled
    peer.send(frame(codes.SETTINGS, codes.ACK, 0))
    assert peer.server.is_settled


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 50])
def test_bytes_may_arrive_in_any_pieces(size: int) -> None:
    peer = Peer(greeted=False)
    padded = frame(codes.DATA, codes.PADDED, 1, b"\4" + message(b"abcdef")[:7] + bytes(4))
    stream = GREETING + peer.headers(1) + padded + data(1, message(b"abcdef")[7:], end=True) + peer.request(3, b"x")
    for at in range(0, len(stream), size):
        peer.send(stream[at : at + size])
    assert peer.ended_with() is None
    assert peer.begun() == [1, 3]
    assert peer.body(1) == (message(b"abcdef"), True)
    assert peer.body(3) == (message(b"x"), True)


@pytest.mark.parametrize("wrong", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_not_http2_ends_at_once(wrong: bytes) -> None:
    peer = Peer(greeted=False)
    peer.send(wrong)
    assert peer.ended_with() is Http2Code.PROTOCOL_ERROR


@pytest.mark.parametrize("first", [ping(), frame(codes.SETTINGS, codes.ACK, 0), window_update(0, 1), frame(99, 0, 0)])
def test_the_first_frame_must_be_settings(first: bytes) -> None:
    peer = Peer(greeted=False)
    peer.send(codes.PREFACE, first)
    assert peer.ended_with() is Http2Code.PROTOCOL_ERROR


def test_nothing_is_read_behind_the_end() -> None:
    peer = Peer()
    (event,) = peer.send(frame(codes.PUSH_PROMISE, 0, 1), peer.request(1))
    assert isinstance(event, ConnectionEnded)
    assert peer.ended_with() is Http2Code.PROTOCOL_ERROR
    assert peer.send(peer.request(3)) == []
    assert peer.frames() == []


# What ends the connection

Wrong = Callable[[Peer], bytes]
CONNECTION_RULES: dict[str, tuple[Http2Code, Wrong]] = {
    "a frame is too large": (Http2Code.FRAME_SIZE_ERROR, lambda p: p.headers(1) + data(1, bytes(FRAME_MAX + 1))),
    "an unknown frame is too large": (Http2Code.FRAME_SIZE_ERROR, lambda p: frame(77, 0, 0, bytes(FRAME_MAX + 1))),
    "DATA on stream 0": (Http2Code.PROTOCOL_ERROR, lambda p: data(0, b"x")),
    "DATA on an idle stream": (Http2Code.PROTOCOL_ERROR, lambda p: data(1, b"x")),
    "DATA on a stream of ours": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(5) + data(2, b"x")),
    "DATA with too much padding": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1) + frame(codes.DATA, codes.PADDED, 1, b"\5abcd"),
    ),
    "DATA without room for its padding": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1) + frame(codes.DATA, codes.PADDED, 1),
    ),
    "HEADERS on stream 0": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(0)),
    "HEADERS on an even stream": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(2)),
    "HEADERS with too much padding": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS | codes.PADDED, 1, b"\x09" + bytes(4)),
    ),
    "HEADERS without room for their padding": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS | codes.PADDED, 1),
    ),
    "HEADERS without room for their priority": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS | codes.WITH_PRIORITY, 1, b"\0\0"),
    ),
    "HEADERS on a stream that ended": (
        Http2Code.STREAM_CLOSED,
        lambda p: p.headers(1) + rst_stream(1) + p.headers(1, end=True),
    ),
    "HEADERS on a stream that was skipped": (Http2Code.STREAM_CLOSED, lambda p: p.headers(3) + p.headers(1)),
    "HEADERS within a block": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1, flags=0) + p.headers(3)),
    "DATA within a block": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1, flags=0) + data(1, b"x")),
    "an unknown frame within a block": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1, flags=0) + frame(77, 0, 1)),
    "CONTINUATION of another stream": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1, flags=0) + frame(codes.CONTINUATION, codes.END_HEADERS, 3),
    ),
    "CONTINUATION without HEADERS": (Http2Code.PROTOCOL_ERROR, lambda p: frame(codes.CONTINUATION, codes.END_HEADERS, 1)),
    "CONTINUATION behind a whole block": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1) + frame(codes.CONTINUATION, codes.END_HEADERS, 1),
    ),
    "CONTINUATION on stream 0": (Http2Code.PROTOCOL_ERROR, lambda p: frame(codes.CONTINUATION, codes.END_HEADERS, 0)),
    "a block that cannot be decoded": (
        Http2Code.COMPRESSION_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
    ),
    "a block that names what is not in the table": (
        Http2Code.COMPRESSION_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS, 1, b"\xc8"),
    ),
    "a block that is cut off": (
        Http2Code.COMPRESSION_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS, 1, b"\x00\x05ab"),
    ),
    "a block that makes the table too large": (
        Http2Code.COMPRESSION_ERROR,
        lambda p: frame(codes.HEADERS, codes.END_HEADERS, 1, b"\x3f\xe2\x1f"),
    ),
    "trailers that cannot be decoded": (
        Http2Code.COMPRESSION_ERROR,
        lambda p: p.headers(1) + frame(codes.HEADERS, codes.END_HEADERS | codes.END_STREAM, 1, b"\xc8\xc8"),
    ),
    "PRIORITY on stream 0": (Http2Code.PROTOCOL_ERROR, lambda p: frame(codes.PRIORITY, 0, 0, bytes(5))),
    "PRIORITY of a wrong size": (Http2Code.FRAME_SIZE_ERROR, lambda p: frame(codes.PRIORITY, 0, 1, bytes(4))),
    "RST_STREAM on stream 0": (Http2Code.PROTOCOL_ERROR, lambda p: rst_stream(0)),
    "RST_STREAM on an idle stream": (Http2Code.PROTOCOL_ERROR, lambda p: rst_stream(1)),
    "RST_STREAM of a wrong size": (
        Http2Code.FRAME_SIZE_ERROR,
        lambda p: p.headers(1) + frame(codes.RST_STREAM, 0, 1, bytes(3)),
    ),
    "SETTINGS on a stream": (Http2Code.PROTOCOL_ERROR, lambda p: frame(codes.SETTINGS, 0, 1)),
    "SETTINGS of a wrong size": (Http2Code.FRAME_SIZE_ERROR, lambda p: frame(codes.SETTINGS, 0, 0, bytes(5))),
    "an acknowledgement with payload": (
        Http2Code.FRAME_SIZE_ERROR,
        lambda p: frame(codes.SETTINGS, codes.ACK, 0, bytes(6)),
    ),
    "ENABLE_PUSH of 2": (Http2Code.PROTOCOL_ERROR, lambda p: settings((codes.ENABLE_PUSH, 2))),
    "INITIAL_WINDOW_SIZE too large": (
        Http2Code.FLOW_CONTROL_ERROR,
        lambda p: settings((codes.INITIAL_WINDOW_SIZE, 2**31)),
    ),
    "MAX_FRAME_SIZE too small": (Http2Code.PROTOCOL_ERROR, lambda p: settings((codes.MAX_FRAME_SIZE, 16383))),
    "MAX_FRAME_SIZE too large": (Http2Code.PROTOCOL_ERROR, lambda p: settings((codes.MAX_FRAME_SIZE, 2**24))),
    "PUSH_PROMISE": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1) + frame(codes.PUSH_PROMISE, 4, 1, bytes(4))),
    "PING on a stream": (Http2Code.PROTOCOL_ERROR, lambda p: frame(codes.PING, 0, 1, bytes(8))),
    "PING of a wrong size": (Http2Code.FRAME_SIZE_ERROR, lambda p: frame(codes.PING, 0, 0, bytes(7))),
    "GOAWAY on a stream": (Http2Code.PROTOCOL_ERROR, lambda p: frame(codes.GOAWAY, 0, 1, bytes(8))),
    "GOAWAY of a wrong size": (Http2Code.FRAME_SIZE_ERROR, lambda p: frame(codes.GOAWAY, 0, 0, bytes(7))),
    "WINDOW_UPDATE of nothing": (Http2Code.PROTOCOL_ERROR, lambda p: window_update(0, 0)),
    "WINDOW_UPDATE of a wrong size": (
        Http2Code.FRAME_SIZE_ERROR,
        lambda p: frame(codes.WINDOW_UPDATE, 0, 0, bytes(5)),
    ),
    "WINDOW_UPDATE on an idle stream": (Http2Code.PROTOCOL_ERROR, lambda p: window_update(1, 1)),
    "WINDOW_UPDATE that overflows": (Http2Code.FLOW_CONTROL_ERROR, lambda p: window_update(0, 2**31 - 1)),
    "INITIAL_WINDOW_SIZE that overflows a window": (
        Http2Code.FLOW_CONTROL_ERROR,
        lambda p: p.headers(1) + window_update(1, 2**31 - 1 - 65535) + settings((codes.INITIAL_WINDOW_SIZE, 65536)),
    ),
}


@pytest.mark.parametrize("rule", CONNECTION_RULES)
def test_it_ends_the_connection(rule: str) -> None:
    code, wrong = CONNECTION_RULES[rule]
    peer = Peer()
    events = peer.send(wrong(peer))
    assert isinstance(events[-1], ConnectionEnded)
    assert events[-1].code is code
    assert peer.ended_with() is code


@pytest.mark.parametrize("rule", CONNECTION_RULES)
def test_it_ends_the_connection_byte_by_byte(rule: str) -> None:
    code, wrong = CONNECTION_RULES[rule]
    peer = Peer()
    stream = wrong(peer)
    if len(stream) > 1000:
        pytest.skip("long frames end at their header")
    for byte in stream:
        peer.send(bytes([byte]))
    assert peer.ended_with() is code


# What ends a stream

STREAM_RULES: dict[str, tuple[Http2Code, Wrong]] = {
    "DATA behind the end": (Http2Code.STREAM_CLOSED, lambda p: p.headers(1, end=True) + data(1, b"x")),
    "DATA behind the end of DATA": (Http2Code.STREAM_CLOSED, lambda p: p.request(1) + data(1, b"x", end=True)),
    "trailers behind the end": (Http2Code.STREAM_CLOSED, lambda p: p.headers(1, end=True) + p.headers(1, [("a", "b")], end=True)),
    "DATA on a stream that the client reset": (
        Http2Code.STREAM_CLOSED,
        lambda p: p.headers(1) + rst_stream(1) + data(1, b"x"),
    ),
    "trailers that do not end the stream": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1) + p.headers(1, [("a", "b")])),
    "trailers with a pseudo-header field": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1) + p.headers(1, [(":path", "/")], end=True),
    ),
    "trailers with a capital letter": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1) + p.headers(1, [("Trailer", "x")], end=True),
    ),
    "PRIORITY of a wrong size": (
        Http2Code.FRAME_SIZE_ERROR,
        lambda p: p.headers(1) + frame(codes.PRIORITY, 0, 1, bytes(6)),
    ),
    "WINDOW_UPDATE of nothing": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1) + window_update(1, 0)),
    "WINDOW_UPDATE that overflows": (
        Http2Code.FLOW_CONTROL_ERROR,
        lambda p: p.headers(1) + window_update(1, 2**31 - 1),
    ),
    "more DATA than content-length": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1, changed(content_length="3")) + data(1, b"abcd"),
    ),
    "less DATA than content-length": (
        Http2Code.PROTOCOL_ERROR,
        lambda p: p.headers(1, changed(content_length="5")) + data(1, b"abcd", end=True),
    ),
    "no DATA for a content-length": (Http2Code.PROTOCOL_ERROR, lambda p: p.headers(1, changed(content_length="5"), end=True)),
}
MALFORMED: dict[str, list[tuple[str, str]]] = {
    "a capital letter": changed(X_y="1"),
    "an empty name": [*HEADERS, ("", "x")],
    "a name with a colon": [*HEADERS, ("a:b", "x")],
    "a name with a space": [*HEADERS, ("a b", "x")],
    "a value with a line break": changed(x="a\nb"),
    "a value with a return": changed(x="a\rb"),
    "a value with a NUL": changed(x="a\0b"),
    ":path that begins with a space": changed(p_path=" /a"),
    ":path that ends with a tab": changed(p_path="/a\t"),
    "a pseudo-header field behind others": [*HEADERS, (":extra", "x")],
    ":path behind others": [*(pair for pair in HEADERS if pair[0] != ":path"), (":path", PATH)],
    "an unknown pseudo-header field": changed(p_protocol="websocket"),
    ":status": changed(p_status="200"),
    ":path twice": [(":path", "/a"), *HEADERS],
    "no :method": changed(p_method=None),
    "no :scheme": changed(p_scheme=None),
    "no :path": changed(p_path=None),
    "an empty :path": changed(p_path=""),
    "a :path with a line break": changed(p_path="/a\n"),
    "CONNECT with a :path": changed(p_method="CONNECT"),
    "connection": changed(connection="close"),
    "keep-alive": changed(keep_alive="1"),
    "proxy-connection": changed(proxy_connection="close"),
    "transfer-encoding": changed(transfer_encoding="chunked"),
    "upgrade": changed(upgrade="h2c"),
    "te other than trailers": changed(te="gzip"),
    "content-length that is no number": changed(content_length="-1"),
    "content-length twice": [*HEADERS, ("content-length", "1"), ("content-length", "2")],
}


def malformed(name: str) -> Wrong:
    return lambda peer: peer.headers(1, MALFORMED[name], end=True)


STREAM_RULES |= {f"malformed: {name}": (Http2Code.PROTOCOL_ERROR, malformed(name)) for name in MALFORMED}


@pytest.mark.parametrize("rule", STREAM_RULES)
def test_it_ends_the_stream_and_nothing_else(rule: str) -> None:
    code, wrong = STREAM_RULES[rule]
    peer = Peer()
    peer.send(wrong(peer), peer.request(3, b"fine"))
    assert peer.resets() == {1: code}
    assert peer.ended_with() is None
    assert peer.body(3) == (message(b"fine"), True)
    assert peer.server.open_streams == 1


def test_a_stream_that_the_peer_breaks_is_reported() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    (event,) = peer.send(window_update(1, 0))
    assert event == StreamEnded(stream_id=1, code=Http2Code.PROTOCOL_ERROR, by_peer=False)


# What is allowed

ALLOWED: dict[str, Wrong] = {
    "HEADERS with priority": lambda p: frame(codes.HEADERS, 0x25, 1, bytes(5) + p.encoder.encode(list(HEADERS))),
    "HEADERS with padding": lambda p: frame(
        codes.HEADERS, codes.END_HEADERS | codes.PADDED | 1, 1, b"\3" + p.encoder.encode(list(HEADERS)) + bytes(3)
    ),
    "trailers": lambda p: p.headers(1) + data(1, b"x") + p.headers(1, [("a", "b")], end=True),
    "PRIORITY on an idle stream": lambda p: frame(codes.PRIORITY, 0, 9, bytes(5)) + p.request(1),
    "PRIORITY on a closed stream": lambda p: p.request(1) + rst_stream(1) + frame(codes.PRIORITY, 0, 1, bytes(5)) + p.request(3),
    "an unknown frame": lambda p: frame(77, 0xFF, 9, bytes(70_000)) + p.request(1),
    "an unknown setting": lambda p: settings((0x7777, 5), (codes.ENABLE_PUSH, 0)) + p.request(1),
    "unknown flags": lambda p: frame(codes.SETTINGS, 0xFE, 0) + p.request(1),
    "the reserved bit": lambda p: p.headers(1) + frame(codes.DATA, 1, 1 | 1 << 31, b"x"),
    "WINDOW_UPDATE on a closed stream": lambda p: p.request(1) + rst_stream(1) + window_update(1, 1) + p.request(3),
    "RST_STREAM twice": lambda p: p.headers(1) + rst_stream(1) + rst_stream(1) + p.request(3),
    "GOAWAY": lambda p: p.headers(1) + frame(codes.GOAWAY, 0, 0, bytes(8) + b"bye") + data(1, b"x", end=True),
    "streams that are skipped": lambda p: p.request(1) + p.request(101),
    "an answered ping that was not asked": lambda p: ping(ack=True) + p.request(1),
    "CONNECT": lambda p: p.headers(1, [(":method", "CONNECT"), (":authority", "x")], end=True),
    "DATA of nothing but padding": lambda p: p.headers(1) + frame(codes.DATA, codes.PADDED | 1, 1, b"\3" + bytes(3)),
    "content-length that fits": lambda p: p.headers(1, changed(content_length="4")) + data(1, b"ab") + data(1, b"cd", end=True),
    "content-length twice the same": lambda p: (
        p.headers(1, [*HEADERS, ("content-length", "1"), ("content-length", "1")]) + data(1, b"a", end=True)
    ),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_it_is_allowed(what: str) -> None:
    peer = Peer()
    peer.send(ALLOWED[what](peer))
    assert peer.ended_with() is None
    assert any(isinstance(event, DataArrived) and event.ended for event in peer.events)
    assert peer.resets() == {}


def test_a_block_in_many_pieces() -> None:
    peer = Peer()
    block = peer.encoder.encode([*HEADERS, ("x", "y" * 300)])
    pieces = [block[at : at + 40] for at in range(0, len(block), 40)]
    frames = [frame(codes.HEADERS, codes.END_STREAM, 1, pieces[0])]
    frames += [frame(codes.CONTINUATION, 0, 1, piece) for piece in pieces[1:-1]]
    frames.append(frame(codes.CONTINUATION, codes.END_HEADERS, 1, pieces[-1]))
    begun, ended = peer.send(*frames)
    assert isinstance(begun, RequestBegan)
    assert begun.head.metadata == (("x", "y" * 300),)
    assert ended == DataArrived(stream_id=1, data=memoryview(b""), ended=True)
    peer.send(peer.request(3))
    assert peer.begun() == [1, 3], "the block is over: other frames may come"


def test_how_long_a_frame_of_headers_may_be() -> None:
    """As long as the longest block, with priority and all padding; a longer one is not even read."""
    for excess, text in ((0, "header list too large"), (1, "a frame of type 1 with 33030 bytes")):
        peer = Peer(header_bytes_max=16 * KIB)
        block = b"\x88" * (32 * KIB + excess)
        flags = codes.END_HEADERS | codes.PADDED | codes.WITH_PRIORITY
        ended = peer.send(frame(codes.HEADERS, flags, 1, b"\xff" + bytes(5) + block + bytes(255)))
        assert ended == [ConnectionEnded(code=Http2Code.ENHANCE_YOUR_CALM, text=text)]


def test_pings_are_answered_with_what_they_carry() -> None:
    peer = Peer()
    peer.send(ping(b"abcdefgh"))
    (answer,) = peer.frames()
    assert isinstance(answer, PingFrame)
    assert answer.opaque_data == b"abcdefgh"
    assert "ACK" in answer.flags


def test_a_reset_is_reported() -> None:
    peer = Peer()
    peer.send(peer.headers(1))
    (event,) = peer.send(rst_stream(1, Http2Code.CANCEL))
    assert event == StreamEnded(stream_id=1, code=8, by_peer=True)
    assert peer.server.open_streams == 0
    peer.server.respond(1, RESPONSE, (b"x",), 1, OK)
    assert peer.frames() == []


def test_more_streams_than_allowed_are_refused_and_may_be_tried_again() -> None:
    peer = Peer(streams_max=2)
    peer.send(peer.headers(1), peer.headers(3), peer.request(5))
    assert peer.resets() == {5: Http2Code.REFUSED_STREAM}
    assert peer.begun() == [1, 3]
    peer.server.finish(1, OK)
    peer.frames()
    peer.send(peer.request(7, b"again"))
    assert peer.body(7) == (message(b"again"), True)
