"""Our frames, byte for byte as a stock library writes them."""

from __future__ import annotations

from hyperframe.frame import Frame, GoAwayFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from tpy.frontends.grpc.transport.core.calls import RESPONSE, Fields
from tpy.http2 import codes
from tpy.http2.codes import (
    SETTINGS_ACK,
    Http2Code,
    goaway_frame,
    ping_frame,
    rst_stream_frame,
    settings_frame,
    window_update_frame,
)
from tpy.units import KIB

from .peer import Peer


def test_frames_without_a_stream_or_state() -> None:
    frames: list[tuple[bytes, Frame]] = [
        (settings_frame(((4, 70_000), (5, 20_000))), SettingsFrame(0, settings={4: 70_000, 5: 20_000})),
        (SETTINGS_ACK, SettingsFrame(0, flags=("ACK",))),
        (ping_frame(b"12345678", ack=False), PingFrame(0, opaque_data=b"12345678")),
        (ping_frame(b"12345678", ack=True), PingFrame(0, opaque_data=b"12345678", flags=("ACK",))),
        (window_update_frame(0, 2**31 - 1), WindowUpdateFrame(0, window_increment=2**31 - 1)),
        (window_update_frame(5, 1), WindowUpdateFrame(5, window_increment=1)),
        (rst_stream_frame(7, Http2Code.CANCEL), RstStreamFrame(7, error_code=8)),
        (goaway_frame(9, Http2Code.ENHANCE_YOUR_CALM, "why"), GoAwayFrame(0, 9, error_code=11, additional_data=b"why")),
        (goaway_frame(0, Http2Code.NO_ERROR), GoAwayFrame(0, 0)),
    ]
    assert [ours for ours, _ in frames] == [theirs.serialize() for _, theirs in frames]


def test_only_the_last_frame_of_a_block_ends_it() -> None:
    peer = Peer()
    peer.send(peer.request(1))
    peer.frames()
    peer.server.finish(1, Fields(constant=RESPONSE.constant, varying=((b"x", b"y" * 40 * KIB),)))
    output = peer.output()
    heads = []
    at = 0
    while at < len(output):
        length = int.from_bytes(output[at : at + 3], "big")
        heads.append((length, output[at + 3], output[at + 4]))
        at += 9 + length
    assert [kind_and_flags for _, *kind_and_flags in heads] == [
        [codes.HEADERS, codes.END_STREAM],
        [codes.CONTINUATION, 0],
        [codes.CONTINUATION, codes.END_HEADERS],
    ]
    assert [length for length, *_ in heads[:2]] == [16 * KIB] * 2
