"""Hostile bytes: frames that are right, nearly right and wrong, in any order."""

from __future__ import annotations

import hpack

from fuzz.chance import Chance
from fuzz.grpc.wire import cuts, frame, random_rules
from fuzz.target import Violation
from tpy.frontends.grpc.transport.core.calls import OK, RESPONSE
from tpy.frontends.grpc.transport.core.http2 import (
    ConnectionEnded,
    DataArrived,
    Event,
    Http2Rules,
    Http2Server,
    RequestBegan,
    StreamEnded,
)
from tpy.http2 import codes

INVARIANT = (
    "whatever the bytes, the machine raises nothing, keeps to its bounds, says nothing of streams that did not begin or have"
    " ended, and means the same however the bytes are cut"
)
_FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.B/C"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x", "y"),
    ("content-length", "5"),
    ("grpc-timeout", "1S"),
    ("Bad", "x"),
    (":extra", "x"),
)
_RIGHT = _FIELDS[:5]

Summary = tuple[object, ...]


class _Writer:
    """Makes a history of bytes."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self.encoder = hpack.Encoder()
        self.stream_id = -1

    def history(self) -> bytes:
        pieces = [codes.PREFACE, frame(codes.SETTINGS, 0, 0, b"")]
        if self.chance.random() < 0.02:
            pieces.pop(self.chance.randrange(2))
        pieces += [self.step() for _ in range(self.chance.choice((5, 20, 60)))]
        data = b"".join(pieces)
        if self.chance.random() < 0.1:
            spoiled = bytearray(data)
            for _ in range(self.chance.randint(1, 3)):
                spoiled[self.chance.randrange(len(spoiled))] = self.chance.randrange(256)
            data = bytes(spoiled)
        return data

    def any_stream(self) -> int:
        if self.chance.random() < 0.01:
            return self.chance.choice((0, 2, self.stream_id + 4, 2**31 - 1))
        return max(1, self.stream_id - 2 * self.chance.choice((0, 0, 0, 1, 2)))

    def step(self) -> bytes:
        chance = self.chance
        rule = chance.random()
        if rule < 0.35:
            return self.headers()
        if rule < 0.65:
            return self.data()
        if rule < 0.99:
            return self.control()
        kind = chance.randrange(12)
        return frame(kind, chance.randrange(256), self.any_stream(), chance.randbytes(chance.choice((0, 4, 5, 8, 30))))

    def headers(self) -> bytes:
        chance = self.chance
        if chance.random() < 0.95:
            self.stream_id += 2
        fields = list(_RIGHT) if chance.random() < 0.8 else chance.sample(_FIELDS, chance.randint(1, len(_FIELDS)))
        block = self.encoder.encode(fields) if chance.random() < 0.99 else chance.randbytes(10)
        stream_id = max(1, self.stream_id) if chance.random() < 0.99 else self.any_stream()
        flags = codes.END_STREAM if chance.random() < 0.3 else 0
        if chance.random() < 0.8:
            return frame(codes.HEADERS, flags | codes.END_HEADERS, stream_id, block)
        at = chance.randint(0, len(block))
        end = frame(codes.CONTINUATION, codes.END_HEADERS if chance.random() < 0.98 else 0, stream_id, block[at:])
        between = self.control() if chance.random() < 0.03 else b""
        return frame(codes.HEADERS, flags, stream_id, block[:at]) + between + end

    def data(self) -> bytes:
        chance = self.chance
        payload = bytes(
            chance.choice((0, 1, 5, 5, 5, 90, 90, 2000)) if chance.random() < 0.9 else chance.choice((16_384, 16_385))
        )
        flags = chance.choice((0, 0, codes.END_STREAM))
        if chance.random() < 0.1:
            flags |= codes.PADDED
            payload = bytes((chance.randrange(len(payload) % 256 + 2),)) + payload
        return frame(codes.DATA, flags, self.any_stream(), payload)

    def control(self) -> bytes:
        chance = self.chance
        number = chance.choice((1, 1, 100, 2**16, chance.choice((0, 2**31 - 1, 2**32 - 1)))).to_bytes(4, "big")
        match chance.randrange(7):
            case 0:
                return frame(codes.WINDOW_UPDATE, 0, chance.choice((0, self.any_stream())), number)
            case 1:
                return frame(codes.RST_STREAM, 0, self.any_stream(), number)
            case 2:
                name = chance.choice((codes.HEADER_TABLE_SIZE, codes.INITIAL_WINDOW_SIZE, 99, chance.randrange(8)))
                return frame(codes.SETTINGS, 0, 0, (name.to_bytes(2, "big") + number) * chance.choice((0, 1, 2)))
            case 3:
                return frame(codes.PING, chance.choice((0, codes.ACK)), 0, chance.choice((b"draining", b"12345678")))
            case 4:
                return frame(codes.PRIORITY, 0, self.any_stream(), bytes(5))
            case 5:
                return frame(codes.SETTINGS, codes.ACK, 0, b"")
            case _:
                return frame(chance.choice((codes.GOAWAY, 10, 255)), 0, 0, bytes(9))


def history(chance: Chance) -> bytes:
    """The bytes of one hostile client, from its preface on."""
    return _Writer(chance).history()


def _feed(server: Http2Server, rules: Http2Rules, pieces: list[bytes]) -> tuple[list[Event], bytes]:
    """All events and all output, with the bounds checked after each piece."""
    events: list[Event] = []
    for piece in pieces:
        events += server.receive(piece, 0)
        if server.open_streams > rules.streams_max:
            raise Violation(f"{server.open_streams} streams are open, {rules.streams_max} are allowed")
    return events, _take(server)


def _take(server: Http2Server) -> bytes:
    output = b""
    while server.has_output:
        output += b"".join(server.take_output())
    return output


def _meaning(events: list[Event]) -> Summary:
    """Events without what depends on cuts: the data of a stream joined, and none for a stream that we failed, because its fault
    may be seen before its data."""
    order: list[object] = []
    data: dict[int, bytes] = {}
    failed: set[int] = set()
    for event in events:
        if isinstance(event, DataArrived):
            data[event.stream_id] += bytes(event.data)
            if event.ended:
                order.append(("end", event.stream_id))
            continue
        if isinstance(event, StreamEnded) and not event.by_peer:
            failed.add(event.stream_id)
        if isinstance(event, RequestBegan):
            data[event.stream_id] = b""
        order.append(event)
    return (tuple(order), {stream_id: body for stream_id, body in data.items() if stream_id not in failed})


def _check_order(events: list[Event], rules: Http2Rules) -> None:
    live: dict[int, int] = {}
    for index, event in enumerate(events):
        if isinstance(event, RequestBegan):
            if event.stream_id in live:
                raise Violation(f"stream {event.stream_id} began twice")
            live[event.stream_id] = 0
        elif isinstance(event, ConnectionEnded):
            if index != len(events) - 1:
                raise Violation("something was said behind the end of the connection")
        elif live.get(event.stream_id, -1) < 0:
            raise Violation(f"{type(event).__name__} of stream {event.stream_id}, which is not open")
        elif isinstance(event, StreamEnded):
            live[event.stream_id] = -1
        else:
            live[event.stream_id] += len(event.data)
            if live[event.stream_id] > rules.stream_window:
                raise Violation(f"stream {event.stream_id} sent more than its window, which was not opened")


def run(chance: Chance) -> int:
    """One history, whole and cut."""
    rules = random_rules(chance)
    data = history(chance)
    return _try(rules, data, list(cuts(chance, data)))


def attack(data: bytes) -> int:
    """Any bytes behind a sound beginning, whole and by the byte."""
    data = codes.PREFACE + frame(codes.SETTINGS, 0, 0, b"") + data
    return _try(random_rules(Chance(0)), data, [data[at : at + 1] for at in range(len(data))])


def _try(rules: Http2Rules, data: bytes, pieces: list[bytes]) -> int:
    whole = Http2Server(rules, 0)
    events, output = _feed(whole, rules, [data])
    _check_order(events, rules)
    cut = Http2Server(rules, 0)
    cut_events, cut_output = _feed(cut, rules, pieces)
    if _meaning(events) != _meaning(cut_events):
        raise Violation(f"other events when cut:\n  {_meaning(events)}\n  {_meaning(cut_events)}")
    if output != cut_output:
        raise Violation("other output when cut")
    # Whatever came before, the machine still answers what it said had begun.
    for event in events:
        if isinstance(event, RequestBegan):
            whole.respond(event.stream_id, RESPONSE, (b"x",), 1, OK)
    _take(whole)
    return len(events)
