"""Output of the machine: responses, GOAWAY, and the peer's decisions about them."""

from __future__ import annotations

import struct

from grpclib.const import Status
from hyperframe.frame import ContinuationFrame, DataFrame, GoAwayFrame, HeadersFrame, PingFrame, RstStreamFrame

from tpy.frontends.grpc.transport.core.calls import OK, RESPONSE, trailers
from tpy.http2 import codes
from tpy.http2.codes import Http2Code
from tpy.limits import GRPC_OUTPUT_BYTES_MAX
from tpy.units import MIB

from .peer import Peer, data, parse_frames, ping, settings, window_update

# What we send


def test_a_response() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.server.respond(1, RESPONSE, (b"ab", memoryview(b"cd")), 4, OK)
    headers, body, end = peer.frames()
    assert isinstance(headers, HeadersFrame)
    assert ("content-type", "application/grpc") in peer.decoder.decode(headers.data)
    assert isinstance(body, DataFrame)
    assert body.data == b"abcd"
    assert isinstance(end, HeadersFrame)
    assert list(peer.decoder.decode(end.data)) == [("grpc-status", "0")]
    assert "END_STREAM" in end.flags
    assert peer.server.open_streams == 0


def test_a_response_before_the_end_of_its_request_asks_the_peer_to_stop() -> None:
    peer = Peer()
    peer.send(peer.headers(1), data(1, b"x"))
    peer.server.finish(1, trailers(Status.UNIMPLEMENTED, "no", ()))
    end, reset = peer.frames()
    assert isinstance(end, HeadersFrame)
    assert isinstance(reset, RstStreamFrame)
    assert reset.error_code == Http2Code.NO_ERROR
    # What was under way is ignored.
    assert peer.send(data(1, b"y"), window_update(1, 5), peer.headers(1, [("a", "b")], end=True)) == []
    assert peer.frames() == []


def test_headers_that_are_too_long_for_a_frame_are_continued() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.server.finish(1, trailers(Status.OK, "", [("x", "abc" * 20_000)]))
    first, *rest = peer.frames()
    assert isinstance(first, HeadersFrame)
    assert "END_STREAM" in first.flags
    assert "END_HEADERS" not in first.flags
    assert all(isinstance(piece, ContinuationFrame) for piece in rest)
    assert ["END_HEADERS" in piece.flags for piece in rest] == [*[False] * (len(rest) - 1), True]
    block = first.data + b"".join(piece.data for piece in rest)  # type: ignore[attr-defined]
    assert max(len(piece.data) for piece in (first, *rest)) == 16384  # type: ignore[attr-defined]
    assert ("x", "abc" * 20_000) in peer.decoder.decode(block)


def test_the_peer_decides_about_frame_sizes() -> None:
    peer = Peer()
    body = bytes(60_000)
    peer.send(peer.request(1))
    peer.server.respond(1, RESPONSE, (body,), len(body), OK)
    assert [len(piece.data) for piece in peer.frames() if isinstance(piece, DataFrame)] == [16384, 16384, 16384, 10848]
    peer.send(settings((codes.MAX_FRAME_SIZE, 50_000), (codes.INITIAL_WINDOW_SIZE, MIB)), window_update(0, MIB), peer.request(3))
    peer.frames()
    peer.server.respond(3, RESPONSE, (body,), len(body), OK)
    assert [len(piece.data) for piece in peer.frames() if isinstance(piece, DataFrame)] == [50_000, 10_000]


def test_the_peer_decides_about_the_header_table() -> None:
    peer = Peer()
    peer.send(peer.request(1), peer.request(3), peer.request(5))
    for stream_id in (1, 3):
        peer.server.respond(stream_id, RESPONSE, (b"",), 0, OK)
    for part in peer.frames():
        if isinstance(part, HeadersFrame):
            peer.decoder.decode(part.data)
    peer.send(settings((codes.HEADER_TABLE_SIZE, 0)))
    peer.decoder.max_allowed_table_size = 0
    peer.server.respond(5, RESPONSE, (b"",), 0, OK)
    blocks = [part.data for part in peer.frames() if isinstance(part, HeadersFrame)]
    assert ("content-type", "application/grpc") in peer.decoder.decode(blocks[0])
    assert list(peer.decoder.decode(blocks[1])) == [("grpc-status", "0")]
    assert peer.decoder.header_table_size == 0


# GOAWAY


def test_draining_accepts_what_is_under_way_until_the_peer_knows() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.server.begin_goaway()
    first, probe = peer.frames()
    assert isinstance(first, GoAwayFrame)
    assert (first.last_stream_id, first.error_code) == (2**31 - 1, Http2Code.NO_ERROR)
    assert isinstance(probe, PingFrame)
    peer.send(peer.request(3))
    peer.send(ping(probe.opaque_data, ack=True))
    (last,) = peer.frames()
    assert isinstance(last, GoAwayFrame)
    assert (last.last_stream_id, last.error_code) == (3, Http2Code.NO_ERROR)
    peer.send(peer.request(5))
    assert peer.resets() == {5: Http2Code.REFUSED_STREAM}
    assert not peer.server.is_drained
    for stream_id in peer.begun():
        peer.server.respond(stream_id, RESPONSE, (b"",), 0, OK)
    assert peer.begun() == [1, 3]
    assert peer.server.is_drained


def test_finishing_the_goaway_needs_no_answer() -> None:
    peer = Peer()
    peer.server.begin_goaway()
    peer.server.finish_goaway()
    peer.server.finish_goaway()
    assert len([part for part in peer.frames() if isinstance(part, GoAwayFrame)]) == 2
    assert peer.server.is_drained


def test_closing_sends_the_reason_and_forgets_the_streams() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.server.send_data(1, (bytes(GRPC_OUTPUT_BYTES_MAX),), GRPC_OUTPUT_BYTES_MAX)
    peer.server.close(Http2Code.NO_ERROR, "old age")
    last = peer.frames()[-1]
    assert isinstance(last, GoAwayFrame)
    assert (last.last_stream_id, last.additional_data) == (1, b"old age")
    assert peer.server.open_streams == 0


def test_frames_are_what_hyperframe_reads() -> None:
    peer = Peer(greeted=False)
    assert struct.unpack(">I", b"\0" + peer.output()[:3])[0] == 24
    assert parse_frames(b"") == []
