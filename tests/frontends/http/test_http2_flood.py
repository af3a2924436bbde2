"""The bound on HTTP/2 frames that are no requests, and readers that take nothing."""

from __future__ import annotations

import h2.connection
import h2.settings
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tpy import limits
from tpy.frontends.http.http2_flood import Http2Flood

from .fakes import FakeServices
from .harness import INFER, infer_body, running

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, payload: bytes = b"", stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


PING = frame(6, b"12345678")


@given(st.lists(st.integers(1, 5000), max_size=20))
def test_however_the_bytes_arrive(cuts: list[int]) -> None:
    data = PREFACE + (frame(0, b"x" * 100, 1) + PING) * limits.HTTP2_IDLE_FRAMES_BURST_MAX
    flood, begin = Http2Flood(0), 0
    for cut in cuts:
        assert flood.received(data[begin : begin + cut], 0) is None
        begin += cut
    assert flood.received(data[begin:], 0) is None
    assert flood.received(PING, 0) == "frames that carry nothing"


def test_time_and_answers_earn_more() -> None:
    flood = Http2Flood(0)
    assert flood.received(PREFACE + PING * limits.HTTP2_IDLE_FRAMES_BURST_MAX, 0) is None
    assert flood.received(PING, 1_000_000_000) is None
    flood = Http2Flood(0)
    flood.received(PREFACE + PING * limits.HTTP2_IDLE_FRAMES_BURST_MAX, 0)
    flood.sent(17)
    assert flood.received(PING, 0) is not None
    flood.sent(limits.HTTP2_ANSWER_BYTES_PER_IDLE_FRAME)
    assert flood.received(PING, 0) is None


def test_resets_are_counted_on_their_own() -> None:
    flood = Http2Flood(0)
    reset = frame(3, b"\0\0\0\x08", 1)
    assert flood.received(PREFACE + reset * limits.HTTP2_RESETS_BURST_MAX + PING, 0) is None
    assert flood.received(reset, 0) == "resets"


async def test_a_reader_that_takes_nothing_is_given_up() -> None:
    """Hypercorn's own way of sending would wait for ever, and hold the stop of the server."""
    async with running(FakeServices(), write_timeout_s=0.2) as server:
        stream = (await server.connect()).stream
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1})
        connection.increment_flow_control_window(2**30)
        fields = [(":method", "POST"), (":path", INFER), (":scheme", "http"), (":authority", "t")]
        connection.send_headers(1, fields)
        body = infer_body(*[0.123456789] * 1_000_000).encode()
        while body:
            room = min(connection.local_flow_control_window(1), connection.max_outbound_frame_size)
            if room:
                connection.send_data(1, body[:room], end_stream=room >= len(body))
                body = body[room:]
            await stream.send_all(connection.data_to_send())
            if not room:
                connection.receive_data(await stream.receive_some())
        with trio.fail_after(10), pytest.raises(trio.BrokenResourceError):
            await _send_until_closed(stream)


async def _send_until_closed(stream: trio.SocketStream) -> None:
    while True:
        await stream.send_all(frame(200))  # of a kind that nobody knows: it is passed over
        await trio.sleep(0.05)
