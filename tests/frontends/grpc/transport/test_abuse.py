"""Peers that cost much and give little: refused as the protocol says, while real clients never come near the bounds."""

from __future__ import annotations

import struct
import time

import hpack
import msgspec
import pytest
from grpclib.const import Status
from hyperframe.frame import GoAwayFrame

from tests.pace import at_pace
from tpy.frontends.grpc.transport.core.calls import OK, RESPONSE, trailers
from tpy.frontends.grpc.transport.core.http2 import ConnectionEnded, RequestBegan
from tpy.frontends.grpc.transport.core.timing import PingRules
from tpy.http2 import codes
from tpy.http2.codes import Http2Code
from tpy.limits import GRPC_FRAMES_PER_STEP_MAX, GRPC_HEADER_FRAMES_MAX
from tpy.units import KIB, MIB, NS_PER_MS, NS_PER_S

from .peer import HEADERS, PING_RULES, Peer, data, frame, message, ping, rst_stream, settings, window_update


def changed_rules(**changes: object) -> PingRules:
    return msgspec.structs.replace(PING_RULES, **changes)


CALM = Http2Code.ENHANCE_YOUR_CALM


def repeat_until_ended(peer: Peer, wrong: bytes, count: int) -> int:
    """Returns how many of `count` the connection took before it ended."""
    for number in range(count):
        if any(isinstance(event, ConnectionEnded) for event in peer.send(wrong)):
            return number
        peer.output()
    return count


# Headers


def test_headers_that_are_too_large_refuse_the_call_only() -> None:
    peer = Peer()
    begun, *_ = peer.send(peer.headers(1, [*HEADERS, ("x", "y" * 17 * KIB)]), peer.request(3))
    assert isinstance(begun, RequestBegan)
    assert begun.head.refused is not None
    assert begun.head.refused.status is Status.RESOURCE_EXHAUSTED
    assert peer.ended_with() is None


def test_table_size_updates_without_end() -> None:
    """Each is a byte. A block begins with two at most."""
    sizes = Peer()
    begun, *_ = sizes.send(frame(codes.HEADERS, codes.END_HEADERS, 1, b"\x20\x3f\xe1\x1f" + sizes.encoder.encode(HEADERS)))
    assert isinstance(begun, RequestBegan)
    sizes.send(frame(codes.HEADERS, codes.END_HEADERS, 3, b"\x20\x20\x20" + sizes.encoder.encode(HEADERS)))
    assert sizes.ended_with() is Http2Code.COMPRESSION_ERROR


def test_fields_of_a_block_are_counted() -> None:
    peer = Peer()
    begun, *_ = peer.send(peer.headers(1, [*HEADERS, *((f"x{number}", "y") for number in range(200))]))
    assert isinstance(begun, RequestBegan)
    assert len(begun.head.metadata) == 200
    peer.send(peer.headers(3, [*HEADERS, *((f"y{number}", "y") for number in range(300))]))
    assert peer.ended_with() is CALM


@pytest.mark.parametrize("name", ["x-bin", "grpc-accept-encoding"])
def test_values_of_one_field_are_counted(name: str) -> None:
    peer = Peer()
    begun, *_ = peer.send(peer.headers(1, [*HEADERS, (name, "," * 15_000)]))
    assert isinstance(begun, RequestBegan)
    assert (begun.head.refused is not None) is (name == "x-bin")
    begun, *_ = peer.send(peer.headers(3, [*HEADERS, (name, ",".join(["gzip"] * 60))]))
    assert isinstance(begun, RequestBegan)
    assert begun.head.refused is None


@pytest.mark.parametrize("pieces", [1, 5])
def test_headers_that_are_far_too_large_end_the_connection(pieces: int) -> None:
    peer = Peer()
    if pieces == 1:
        peer.send(frame(codes.HEADERS, codes.END_HEADERS, 1, bytes(40 * KIB)))
    else:
        peer.send(frame(codes.HEADERS, 0, 1, bytes(8 * KIB)), *[frame(codes.CONTINUATION, 0, 1, bytes(8 * KIB))] * 4)
    assert peer.ended_with() is CALM


def test_a_small_block_that_unpacks_to_much_ends_the_connection() -> None:
    peer = Peer()
    bomb = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000  # a field of 4000 bytes goes into the table
    peer.send(frame(codes.HEADERS, codes.END_HEADERS, 1, bomb + b"\xbe" * 100))
    assert peer.ended_with() is CALM


@pytest.mark.parametrize("payload", [b"", b"x"])
def test_a_flood_of_continuations(payload: bytes) -> None:
    peer = Peer()
    peer.send(frame(codes.HEADERS, 0, 1))
    assert repeat_until_ended(peer, frame(codes.CONTINUATION, 0, 1, payload), 100) == GRPC_HEADER_FRAMES_MAX - 1
    assert peer.server.is_closed


# Streams


def test_rapid_reset() -> None:
    peer = Peer()
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.headers(stream_id, end=True), rst_stream(stream_id))
        if peer.server.is_closed:
            break
    assert peer.ended_with() is CALM
    assert 1900 < stream_id < 2100


def test_rapid_reset_that_makes_us_reset() -> None:
    peer = Peer()
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.headers(stream_id, end=True), window_update(stream_id, 0))
        if peer.server.is_closed:
            break
    assert peer.ended_with() is CALM
    assert stream_id < 2100


def test_many_streams_that_are_refused() -> None:
    peer = Peer(streams_max=1)
    for stream_id in range(1, 10_000, 2):
        peer.send(peer.headers(stream_id))
        peer.output()
        if peer.server.is_closed:
            break
    assert stream_id < 2100


def test_cancelled_calls_may_bring_the_frames_that_every_call_brings() -> None:
    peer = Peer()
    for number in range(
        6000
    ):  # 100 calls each second, each given up before its answer, as by a client of a server that is too slow
        stream_id = 2 * number + 1
        peer.now_ns = number * NS_PER_S // 100
        peer.send(peer.headers(stream_id), window_update(stream_id, 10), window_update(0, 10), rst_stream(stream_id))
        peer.output()
    assert not peer.server.is_closed


def test_clients_that_cancel_much_and_slowly_or_use_answers_are_served() -> None:
    peer = Peer()
    for stream_id in range(1, 8001, 4):
        peer.send(peer.request(stream_id), peer.headers(stream_id + 2), rst_stream(stream_id + 2))
        peer.server.respond(stream_id, RESPONSE, (b"",), 0, OK)
        peer.output()
    for stream_id in range(8001, 12_001, 2):
        peer.now_ns += NS_PER_S // 150
        peer.send(peer.headers(stream_id), rst_stream(stream_id))
    assert peer.ended_with() is None


# Frames that carry nothing

NOTHING = {
    "settings": settings(),
    "settings that change a window": settings((codes.INITIAL_WINDOW_SIZE, 5)),
    "acknowledgements": frame(codes.SETTINGS, codes.ACK, 0),
    "answers to pings": ping(ack=True),
    "priorities": frame(codes.PRIORITY, 0, 1, bytes(5)),
    "empty data": data(1, b""),
    "padding": frame(codes.DATA, codes.PADDED, 1, b"\0"),
    "window updates": window_update(1, 1),
    "window updates of the connection": window_update(0, 1),
    "unknown frames": frame(200, 0, 0),
    "goaways": frame(codes.GOAWAY, 0, 0, bytes(8)),
    "resets of a closed stream": rst_stream(3),
    "empty data on a closed stream": data(3, b""),
}


@pytest.mark.parametrize("what", NOTHING)
def test_a_flood_of(what: str) -> None:
    peer = Peer()
    peer.send(peer.headers(1), peer.headers(3), rst_stream(3))
    assert 990 < repeat_until_ended(peer, NOTHING[what], 2000) <= 1000


@pytest.mark.parametrize("what", NOTHING)
def test_a_trickle_of(what: str) -> None:
    peer = Peer()
    peer.send(peer.headers(1), peer.headers(3), rst_stream(3))
    for _ in range(3000):
        peer.now_ns += NS_PER_S // 9
        peer.send(NOTHING[what])
        peer.output()
    assert not peer.server.is_closed


def test_more_settings_than_there_are() -> None:
    peer = Peer()
    peer.send(settings(*[(0x99, 1)] * 100))
    assert peer.ended_with() is CALM


@pytest.mark.parametrize("kind", [codes.SETTINGS, codes.GOAWAY, codes.PING, codes.WINDOW_UPDATE])
def test_control_frames_that_are_large(kind: int) -> None:
    peer = Peer()
    peer.send(frame(kind, 0, 0, bytes(17 * KIB))[:9])  # its header is enough
    assert peer.ended_with() is CALM


def test_window_updates_that_move_data_are_no_flood() -> None:
    peer = Peer()
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)), peer.request(1))
    peer.server.respond(1, RESPONSE, (bytes(5000),), 5000, OK)
    for _ in range(5000):
        peer.send(window_update(1, 1))
        peer.output()
    assert peer.ended_with() is None
    assert peer.server.open_streams == 0


# Pings


def goaway_text(peer: Peer) -> bytes:
    found = [part for part in peer.frames() if isinstance(part, GoAwayFrame)]
    return bytes(found[-1].additional_data) if found else b""


def test_pings_that_come_too_often() -> None:
    peer = Peer()
    for _ in range(3):
        peer.send(ping())
        assert not peer.server.is_closed
    peer.send(ping())
    assert goaway_text(peer) == b"too_many_pings"


def test_pings_are_forgiven_when_something_is_sent() -> None:
    peer = Peer()
    for stream_id in range(1, 41, 2):
        peer.send(peer.request(stream_id), ping(), ping(), ping())
        peer.server.respond(stream_id, RESPONSE, (b"",), 0, OK)
    assert peer.ended_with() is None


@pytest.mark.parametrize(
    ("calls", "permitted", "interval_s", "fine"),
    [
        (True, False, 301, True),
        (True, False, 299, False),
        (False, False, 301, False),
        (False, False, 7201, True),
        (False, True, 301, True),
    ],
)
def test_how_often_pings_may_come(calls: bool, permitted: bool, interval_s: int, fine: bool) -> None:
    rules = changed_rules(permit_without_calls=permitted)
    peer = Peer(pings=rules)
    if calls:
        peer.send(peer.headers(1))
    for _ in range(10):
        peer.now_ns += interval_s * NS_PER_S
        peer.send(ping())
    assert peer.server.is_closed is not fine


def test_any_number_of_strikes_still_meets_the_flood_bound() -> None:
    peer = Peer(pings=changed_rules(strikes_max=0))
    assert repeat_until_ended(peer, ping(), 2000) == 998  # two were spent in the greeting


# Peers that do not read


def test_answers_that_are_not_taken() -> None:
    peer = Peer(pings=changed_rules(strikes_max=0))
    end = trailers(Status.OK, "", [("x", "y" * 4000)])
    for stream_id in range(1, 20_000, 2):
        peer.send(peer.request(stream_id))
        peer.server.finish(stream_id, end)
        if peer.server.is_closed:
            break
    assert 4 * MIB < len(peer.output()) < 5 * MIB


def test_responses_of_a_peer_that_opens_no_window_stay_within_its_streams() -> None:
    peer = Peer(streams_max=10)
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 0)))
    for stream_id in range(1, 41, 2):
        peer.send(peer.request(stream_id))
        peer.server.respond(stream_id, RESPONSE, (bytes(1000),), 1000, OK)
        peer.output()
    assert peer.server.open_streams == 10
    assert sum(peer.server.queued_bytes(stream_id) for stream_id in range(1, 41, 2)) == 10_000


def test_settings_move_the_windows_once() -> None:
    peer = Peer(streams_max=1000)
    peer.send(*(peer.headers(2 * number + 1) for number in range(1000)))
    pairs = [(codes.INITIAL_WINDOW_SIZE, 5 + number % 2) for number in range(63)]
    began_ns = time.thread_time_ns()
    for _ in range(20):
        peer.send(settings(*pairs))
    assert time.thread_time_ns() - began_ns < at_pace(100 * NS_PER_MS)  # 20 times 63 times 1000 windows would be a second
    peer.send(settings((codes.INITIAL_WINDOW_SIZE, 2**31), (codes.INITIAL_WINDOW_SIZE, 5)))
    assert peer.ended_with() is Http2Code.FLOW_CONTROL_ERROR


def test_frames_are_read_some_at_a_time() -> None:
    """One step is bounded, and all steps together do as much as one would."""
    whole, stepwise = Peer(), Peer()
    sent = [b"".join((peer.headers(1), *(data(1, b"x") for _ in range(500)), peer.request(3))) for peer in (whole, stepwise)]
    whole.send(sent[0])
    events = stepwise.server.receive(sent[1], 0, 64)
    steps = 1
    while stepwise.server.has_input:
        more = stepwise.server.receive(b"", 0, 64)
        assert len(more) <= 64
        events += more
        steps += 1
    assert steps == 503 // 64 + 1
    assert len(events) == len(whole.events)
    stepwise.events = events
    assert stepwise.body(1) == whole.body(1)
    assert stepwise.body(3) == whole.body(3)


@pytest.mark.parametrize("flood", ["data", "indexed", "literals", "huffman", "references"])
def test_a_step_is_short(flood: str) -> None:
    """A megabyte of the worst frames that the bounds allow, read in steps: each is a few milliseconds."""
    peer = Peer(streams_max=1000, header_bytes_max=16 * KIB)
    encoder = hpack.Encoder()
    if flood == "data":
        frames = [peer.headers(1), *[data(1, b"x")] * 100_000]
    elif flood == "indexed":
        frames = [frame(codes.HEADERS, codes.END_HEADERS, 1 + 2 * n, b"\x90" * 250) for n in range(400)]
    elif flood == "literals":
        block = b"".join(b"\x00\x01a\x01" + bytes([65 + n % 26]) for n in range(250))
        frames = [frame(codes.HEADERS, codes.END_HEADERS, 1 + 2 * n, block) for n in range(200)]
    elif flood == "huffman":
        block = encoder.encode([("x", "\x1f" * 7_000), ("y", "0" * 8_000)], huffman=True)
        frames = [frame(codes.HEADERS, codes.END_HEADERS, 1 + 2 * n, block) for n in range(40)]
    else:
        block = encoder.encode([("x", "y" * 4_000)], huffman=False)
        frames = [frame(codes.HEADERS, codes.END_HEADERS, 1 + 2 * n, (b"" if n else block) + b"\xbe" * 7) for n in range(900)]
    pending, worst_ns = b"".join(frames), 0
    while pending or peer.server.has_input:
        began_ns = time.thread_time_ns()
        peer.server.receive(pending, 0, GRPC_FRAMES_PER_STEP_MAX)
        worst_ns = max(worst_ns, time.thread_time_ns() - began_ns)
        pending = b""
        peer.output()
    assert not peer.server.is_closed
    assert worst_ns < at_pace(25 * NS_PER_MS)


def test_data_in_single_bytes() -> None:
    peer = Peer()
    body = message(bytes(5000))
    peer.send(peer.headers(1), *(data(1, bytes([byte])) for byte in body[:-1]), data(1, body[-1:], end=True))
    assert peer.body(1) == (body, True)
    assert struct.unpack(">I", body[1:5]) == (5000,)
