"""Messages within a stream: any pieces, no copies that grow, nothing allocated for what was only announced."""

from __future__ import annotations

import tracemalloc

import pytest
from grpclib.const import Status
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.grpc.transport.core.calls import FramingFault, MessageReader, prefix
from tpy.units import KIB, MIB

from .peer import message

BODIES = st.lists(st.tuples(st.booleans(), st.binary(max_size=30)), max_size=6)


@given(BODIES, st.lists(st.integers(1, 12), min_size=1))
def test_any_pieces_give_the_same_messages(bodies: list[tuple[bool, bytes]], sizes: list[int]) -> None:
    stream = memoryview(b"".join(message(body, compressed=compressed) for compressed, body in bodies))
    reader = MessageReader(100)
    found: list[tuple[bool, bytes]] = []
    at = step = 0
    while at < len(stream):
        size = sizes[step % len(sizes)]
        found += [(compressed, bytes(body)) for compressed, body in reader.feed(stream[at : at + size])]
        at, step = at + size, step + 1
    assert found == bodies
    assert not reader.is_within_message


def test_prefixes() -> None:
    assert prefix(258, compressed=False) == b"\0\0\0\1\2"
    assert prefix(2**31 - 1, compressed=True) == b"\1\x7f\xff\xff\xff"


def test_a_whole_message_is_not_copied() -> None:
    data = memoryview(message(b"abc") + message(b"def"))
    assert [body.obj is data.obj for _, body in MessageReader(10).feed(data)] == [True, True]


@pytest.mark.parametrize("flag", [2, 128, 255])
def test_unknown_flags(flag: int) -> None:
    with pytest.raises(FramingFault, match=f"flag {flag}") as caught:
        MessageReader(10).feed(memoryview(bytes([flag, 0, 0, 0, 0])))
    assert caught.value.status is Status.INTERNAL


def test_a_message_beyond_the_limit_is_refused_by_its_prefix() -> None:
    reader = MessageReader(10)
    assert len(reader.feed(memoryview(message(bytes(10))))) == 1
    with pytest.raises(FramingFault, match=r"larger than max \(11 vs\. 10\)") as caught:
        reader.feed(memoryview(message(bytes(11))[:5]))
    assert caught.value.status is Status.RESOURCE_EXHAUSTED


def test_a_message_that_has_begun_is_known() -> None:
    reader = MessageReader(100)
    assert not reader.is_within_message
    reader.feed(memoryview(b"\0\0"))
    assert reader.is_within_message
    reader.feed(memoryview(b"\0\0\x0aabc"))
    assert reader.is_within_message
    ((_, body),) = reader.feed(memoryview(b"defghij"))
    assert bytes(body) == b"abcdefghij"
    assert not reader.is_within_message


def test_memory_follows_what_arrives_not_what_is_announced() -> None:
    tracemalloc.start()
    try:
        reader = MessageReader(2**31 - 1)
        reader.feed(memoryview(b"\0\x7f\xff\xff\xff" + bytes(KIB)))
        assert tracemalloc.get_traced_memory()[1] < 64 * KIB
        tracemalloc.reset_peak()
        reader = MessageReader(2**31 - 1)
        piece = memoryview(bytes(64 * KIB))
        reader.feed(memoryview(b"\0" + (16 * MIB).to_bytes(4, "big")))
        for _ in range(255):
            reader.feed(piece)
        ((_, body),) = reader.feed(piece)
        assert len(body) == 16 * MIB
        assert tracemalloc.get_traced_memory()[1] < 2.3 * 16 * MIB  # growing may hold two copies for a moment
    finally:
        tracemalloc.stop()
