"""Header blocks remembered rightly; what the headers of a call say; what we answer with."""

from __future__ import annotations

import hpack
import pytest
from grpclib.const import Status
from grpclib.metadata import decode_grpc_message
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.grpc.transport.core.calls import (
    OK,
    MalformedHeaders,
    RefusedCall,
    RequestHead,
    parse_request_head,
    refusal,
    response_headers,
    trailers,
    trailers_only,
)
from tpy.http2.codes import ConnectionFault
from tpy.http2.header_blocks import HeaderReader, HeaderWriter
from tpy.limits import GRPC_HEADER_BLOCKS_REMEMBERED_MAX, GRPC_STATUS_MESSAGE_BYTES_MAX

Fields = tuple[tuple[bytes, bytes], ...]
FIELD = st.tuples(st.sampled_from((b"a", b"bb", b":path", b"content-type", b"x-bin")), st.binary(max_size=40))
BLOCKS = st.lists(st.tuples(st.lists(FIELD, max_size=5), st.booleans(), st.sampled_from((None, None, 0, 60, 4096))), max_size=30)


# Blocks


@given(BLOCKS)
def test_remembered_blocks_decode_to_the_same_headers(blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]]) -> None:
    """Every block three times, from an encoder that indexes or not and resizes its table."""
    encoder = hpack.Encoder()
    reader: HeaderReader[Fields] = HeaderReader(lambda headers: headers, 65536)
    for fields, sensitive, resize in blocks:
        if resize is not None:
            encoder.header_table_size = resize
        for _ in range(3):
            block = encoder.encode([(name, value, sensitive) for name, value in fields])
            assert reader.request(block) == tuple(fields)


def test_trailers_change_what_a_remembered_block_means() -> None:
    """A connection that a proxy shares among clients: one of them got the metadata of another."""
    reader: HeaderReader[Fields] = HeaderReader(lambda headers: headers, 65536)
    latest = b"\xbe"  # the entry of the table that was added last
    assert reader.request(b"\x40\x01a\x01b") == ((b"a", b"b"),)
    for _ in range(3):
        assert reader.request(latest) == ((b"a", b"b"),)
    reader.decode(b"\x40\x01x\x01y")
    for _ in range(3):
        assert reader.request(latest) == ((b"x", b"y"),)


@pytest.mark.parametrize("block", [b"\xff" * 8, b"\x3f" + b"\xff" * 6, b"\x0f" + b"\xff" * 16_000, b"\xff\x80\x80"])
def test_a_block_that_cannot_be_decoded_is_not_shown(block: bytes) -> None:
    reader: HeaderReader[Fields] = HeaderReader(lambda headers: headers, 65536)
    with pytest.raises(ConnectionFault) as caught:
        reader.decode(block)
    assert caught.value.text.startswith("cannot decode a header block: ")
    assert "0x" not in caught.value.text
    assert len(caught.value.text) < 150


@given(BLOCKS)
def test_a_stock_decoder_reads_what_we_write(blocks: list[tuple[list[tuple[bytes, bytes]], bool, int | None]]) -> None:
    writer = HeaderWriter()
    decoder = hpack.Decoder()
    for fields, varying, resize in blocks:
        if resize is not None:
            decoder.max_allowed_table_size = resize
            writer.limit_table(resize)
        for _ in range(3):
            block = writer.varying(tuple(fields)) if varying else writer.constant(tuple(fields))
            assert [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)] == fields


def test_the_same_block_is_decoded_once() -> None:
    decoded: list[Fields] = []
    reader = HeaderReader(lambda headers: decoded.append(headers) or len(decoded), 65536)  # type: ignore[func-returns-value]
    encoder = hpack.Encoder()
    fields = [(b":path", b"/a"), (b"x", b"y")]
    assert [reader.request(encoder.encode(fields)) for _ in range(6)] == [1, 2, 2, 2, 2, 2]
    # Something new in the table: what was remembered is not believed any more.
    reader.request(encoder.encode([(b"new", b"field")]))
    assert reader.request(encoder.encode(fields)) == 4


def test_table_sizes_that_changed_twice_are_sent_as_the_least_and_the_last() -> None:
    writer = HeaderWriter()
    decoder = hpack.Decoder()
    fields = ((b"grpc-status", b"0"),)
    decoder.decode(writer.constant(fields))
    for sizes in ((0, 4096), (4096, 50), (100, 20, 3000), (70_000, 10)):
        for size in sizes:
            writer.limit_table(size)
        decoder.max_allowed_table_size = sizes[-1]
        for _ in range(3):
            assert list(decoder.decode(writer.constant(fields))) == [("grpc-status", "0")]


def test_a_table_size_is_sent_once() -> None:
    writer = HeaderWriter()
    writer.limit_table(100)
    fields = ((b":status", b"200"),)
    assert [writer.constant(fields) for _ in range(3)] == [b"\x3f\x45\x88", b"\x88", b"\x88"]


def test_only_so_many_blocks_are_remembered() -> None:
    writer = HeaderWriter()
    blocks: list[Fields] = [((b":status", b"200"),) * number for number in range(1, GRPC_HEADER_BLOCKS_REMEMBERED_MAX + 6)]
    first = [writer.constant(fields) for fields in blocks]
    again = [writer.constant(fields) for fields in blocks]
    assert first == again
    remembered = [one is other for one, other in zip(first, again, strict=True)]
    assert remembered == [True] * GRPC_HEADER_BLOCKS_REMEMBERED_MAX + [False] * 5


def test_what_varies_stays_out_of_the_table() -> None:
    writer = HeaderWriter()
    decoder = hpack.Decoder()
    for number in range(100):
        decoder.decode(writer.constant(((b"grpc-status", b"0"),)))
        decoder.decode(writer.varying(((b"grpc-message", b"%d" % number),)))
    assert len(decoder.header_table.dynamic_entries) == 1


@given(st.binary(max_size=200))
def test_any_bytes_are_headers_or_a_fault(block: bytes) -> None:
    reader: HeaderReader[Fields] = HeaderReader(lambda headers: headers, 4096)
    try:
        fields = reader.request(block)
    except ConnectionFault:
        return
    assert fields == tuple(hpack.Decoder().decode(block, raw=True))


# The head of a call

BASE = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/pkg.Service/Method"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


def head(*fields: tuple[bytes, bytes], without: bytes = b"") -> RequestHead:
    return parse_request_head((*(pair for pair in BASE if pair[0] != without), *fields), 4096)


def refused(*fields: tuple[bytes, bytes], without: bytes = b"") -> RefusedCall:
    found = head(*fields, without=without).refused
    assert found is not None
    return found


def test_a_call_with_required_headers_only() -> None:
    assert head() == RequestHead(path="/pkg.Service/Method")


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        (b"1H", 3600 * 10**9),
        (b"2M", 120 * 10**9),
        (b"3S", 3 * 10**9),
        (b"4m", 4_000_000),
        (b"5u", 5_000),
        (b"6n", 6),
        (b"0n", 0),
        (b"99999999H", 99999999 * 3600 * 10**9),
    ],
)
def test_time_outs(text: bytes, expected_ns: int) -> None:
    assert head((b"grpc-timeout", text)).timeout_ns == expected_ns


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"1s", b"-1S", b"1.5S", b"123456789S", b"1S "[:2] + b"x"])
def test_time_outs_that_are_none(text: bytes) -> None:
    found = refused((b"grpc-timeout", text))
    assert found.status is Status.INTERNAL
    assert "malformed grpc-timeout" in found.message


@pytest.mark.parametrize("value", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=x"])
def test_content_types(value: bytes) -> None:
    assert head((b"content-type", value), without=b"content-type").refused is None


@pytest.mark.parametrize("value", [b"application/json", b"application/grpcx", b"application/grpc-web", b"text/html", b""])
def test_content_types_that_are_not_served(value: bytes) -> None:
    found = refused((b"content-type", value), without=b"content-type")
    assert (found.http_status, found.status) == (415, Status.UNKNOWN)
    assert "application/grpc" in found.message


def test_what_must_be_there() -> None:
    assert refused(without=b"content-type").http_status == 415
    missing_te = refused(without=b"te")
    assert (missing_te.http_status, missing_te.status) == (400, Status.UNKNOWN)
    assert "te: trailers" in missing_te.message
    assert head((b"endpoint-load-metrics-format", b"text")).load_format == "text"
    assert head().load_format == ""
    get = parse_request_head(((b":method", b"GET"), *BASE[1:]), 4096).refused
    assert get is not None
    assert (get.http_status, get.message) == (405, "gRPC calls use the method POST, got 'GET'")


def test_encodings() -> None:
    assert head((b"grpc-encoding", b"gzip")).encoding == "gzip"
    assert head((b"grpc-encoding", b"identity")).encoding == "identity"
    unknown = refused((b"grpc-encoding", b"br"))
    assert unknown.status is Status.UNIMPLEMENTED
    assert "identity, deflate, gzip" in unknown.message


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [(b"gzip", "gzip"), (b"identity,deflate", "deflate"), (b"deflate, gzip", "gzip"), (b"br", "identity"), (b"", "identity")],
)
def test_what_the_client_accepts(accepted: bytes, expected: str) -> None:
    assert head((b"grpc-accept-encoding", accepted)).reply_encoding == expected


def test_metadata() -> None:
    fields = [
        (b"user-agent", b"me"),
        (b"a", b"1"),
        (b"a", b"2"),
        (b"k-bin", b"AAEC"),
        (b"k-bin", b"/w==,/v8"),
        (b"empty-bin", b""),
        (b"latin", b"\xe9"),
        (b"grpc-timeout", b"1S"),
        (b"grpc-accept-encoding", b"gzip"),
    ]
    assert head(*fields).metadata == (
        ("user-agent", "me"),
        ("a", "1"),
        ("a", "2"),
        ("k-bin", b"\0\1\2"),
        ("k-bin", b"\xff"),
        ("k-bin", b"\xfe\xff"),
        ("empty-bin", b""),
        ("latin", "é"),
    )


@pytest.mark.parametrize("value", [b"A", b"AA*A", b"=AAA", b"AAAAA"])
def test_binary_metadata_that_is_none(value: bytes) -> None:
    assert refused((b"k-bin", value)).message == "the value of metadata k-bin is not base64"


def test_headers_that_are_too_many() -> None:
    found = refused(*[(b"k%d" % number, b"") for number in range(130)])
    assert found.status is Status.RESOURCE_EXHAUSTED
    assert "at most 4096" in found.message


def test_broken_headers_are_no_head() -> None:
    with pytest.raises(MalformedHeaders):
        head((b"X", b""))


# Answers


def as_dict(fields: object) -> dict[bytes, bytes]:
    return dict((*fields.constant, *fields.varying))  # type: ignore[attr-defined]


@given(st.text())
def test_messages_survive(text: str) -> None:
    sent = as_dict(trailers(Status.INTERNAL, text, ()))
    assert sent[b"grpc-status"] == b"13"
    if text and len(sent[b"grpc-message"]) < GRPC_STATUS_MESSAGE_BYTES_MAX - 100:
        assert decode_grpc_message(sent[b"grpc-message"].decode()) == text
    else:
        assert text == "" or len(sent[b"grpc-message"]) > 100


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "a" * 6000 + "€" * 200, "%" * 7000])
def test_long_messages_are_cut(text: str) -> None:
    sent = as_dict(trailers(Status.INTERNAL, text, ()))[b"grpc-message"]
    assert GRPC_STATUS_MESSAGE_BYTES_MAX // 2 < len(sent) <= GRPC_STATUS_MESSAGE_BYTES_MAX
    decoded = decode_grpc_message(sent.decode())
    assert decoded.endswith("...")
    assert text.startswith(decoded[:-3])


def test_ok_has_no_message() -> None:
    assert trailers(Status.OK, "fine", ()) is OK
    assert as_dict(trailers(Status.OK, "fine", [("a", "b")])) == {b"grpc-status": b"0", b"a": b"b"}


def test_trailing_metadata() -> None:
    sent = trailers(Status.OK, "", [("a", "b c"), ("a", ""), ("k-bin", b"\0\1\2\3")])
    assert sent.varying == ((b"a", b"b c"), (b"a", b""), (b"k-bin", b"AAECAw"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("A", "x"),
        ("", "x"),
        ("a b", "x"),
        (":path", "x"),
        ("grpc-status", "0"),
        ("content-type", "x"),
        ("a", "x\n"),
        ("a", "é"),
        ("a", " x"),
        ("a", b"x"),
        ("a-bin", "x"),
    ],
)
def test_trailing_metadata_that_cannot_be_sent(key: str, value: str | bytes) -> None:
    with pytest.raises(ValueError, match="metadata"):
        trailers(Status.OK, "", [(key, value)])


def test_headers_of_responses() -> None:
    assert b"grpc-encoding" not in as_dict(response_headers("identity"))
    assert as_dict(response_headers("gzip"))[b"grpc-encoding"] == b"gzip"
    only = as_dict(trailers_only(Status.NOT_FOUND, "no", ()))
    assert (only[b":status"], only[b"grpc-status"], only[b"grpc-message"]) == (b"200", b"5", b"no")


def test_refusals() -> None:
    sent = as_dict(refusal(RefusedCall(status=Status.UNKNOWN, message="no", http_status=415)))
    assert sent == {b":status": b"415", b"grpc-status": b"2", b"grpc-message": b"no"}
    assert as_dict(refusal(RefusedCall(status=Status.UNIMPLEMENTED, message="no")))[b":status"] == b"200"
