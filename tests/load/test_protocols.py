"""The bytes of answers, in pieces of any size."""

from __future__ import annotations

import json
import socket
import time
from itertools import pairwise

import hpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pace import at_pace
from tpy._proto import message_class
from tpy.http2.codes import frame_header, settings_frame
from tpy.messages import DataType, Tensor
from tpy.units import KIB, MIB
from tpy_tools.load import (
    AnswerPart,
    BrokenAnswer,
    PlannedCall,
    SequencePlace,
    encode_grpc,
    encode_http,
    error_text,
    read_grpc,
    read_http,
)
from tpy_tools.load.core.answers import TokenCounts
from tpy_tools.load.core.http1 import AnswerReader, EventSplitter
from tpy_tools.load.core.http2 import GrpcConnection, frame_message
from tpy_tools.load.core.tokens import TokenEvents, tokens_of
from tpy_tools.load.links import Events, Target, _stream_answer, connect

CUTS = st.lists(st.integers(0, 400), max_size=12)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\nT: 1\r\n\r\n"
FIXED = b"HTTP/1.1 400 Bad\r\nContent-Length: 4\r\nX-Y: z\r\n\r\nbody"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges) if end > begin]


@given(CUTS)
def test_answers_of_http_are_read_however_they_are_cut(cuts: list[int]) -> None:
    reader = AnswerReader()
    found = [answer for piece in pieces(FIXED + CHUNKED + EMPTY + FIXED, cuts) for answer in reader.feed(piece)]
    assert [(answer.status, answer.body) for answer in found] == [(400, b"body"), (200, b"abcdefgh"), (204, b""), (400, b"body")]
    assert found[0].headers["x-y"] == "z"
    assert reader.idle


def test_pieces_of_an_answer_are_given_as_they_come() -> None:
    found = AnswerReader(pieces=True).feed(CHUNKED)
    assert [(answer.body, answer.final) for answer in found] == [(b"abc", False), (b"defgh", False), (b"", True)]


@given(st.lists(st.integers(0, 60), max_size=8))
def test_events_are_told_apart_however_they_are_cut(cuts: list[int]) -> None:
    splitter = EventSplitter()
    data = b'data: {"a": 1}\n\ndata: 2\n\ndata: [DONE]\n\ndata: last'
    found = [event for piece in pieces(data, cuts) for event in splitter.feed(piece)] + splitter.end()
    assert found == [b'data: {"a": 1}', b"data: 2", b"data: last"]


def test_an_answer_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nall of") == []
    assert reader.feed(b" it") == []
    assert [answer.body for answer in reader.closed()] == [b"all of it"]


LARGE = bytes(range(256)) * (32 * MIB // 256)


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: %d\r\n\r\n" % len(LARGE), b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(LARGE), b"\r\n"],
    ids=["length", "chunk", "until the end"],
)
def test_a_large_answer_is_put_together_once(head: bytes) -> None:
    reader = AnswerReader()
    begun_s = time.process_time()
    data = b"HTTP/1.1 200 OK\r\n" + head + LARGE + (b"\r\n0\r\n\r\n" if b"chunked" in head else b"")
    found = [answer for at in range(0, len(data), 16 * KIB) for answer in reader.feed(data[at : at + 16 * KIB])]
    found += reader.closed()
    assert [answer.body for answer in found] == [LARGE]
    assert time.process_time() - begun_s < at_pace(5)  # 2,048 pieces: each time anew it would be 33 GB


def test_a_large_message_of_grpc_is_put_together_once() -> None:
    connection = GrpcConnection("h:1", "/s/m")
    connection.call(frame_message(b"?"))
    framed = frame_message(LARGE)
    begun_s = time.process_time()
    found = [
        answer
        for at in range(0, len(framed), 16 * KIB)
        for answer in connection.feed(_frame(0, 0, 1, framed[at : at + 16 * KIB]))
    ]
    found += connection.feed(_frame(1, 5, 1, hpack.Encoder().encode([("grpc-status", "0")])))
    assert [(stream, answer.body) for stream, answer in found] == [(1, LARGE)]
    assert time.process_time() - begun_s < at_pace(5)


def test_a_large_request_waits_for_its_reader() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = connect(Target(host="127.0.0.1", port=listener.getsockname()[1]))
        peer, _ = listener.accept()
        with peer:
            link.begin(0, LARGE)
            assert not link.flush(), "no socket takes it at once"
            received = bytearray()
            while len(received) < len(LARGE):
                received += peer.recv(MIB)
                link.flush()
            assert received == LARGE
            assert link.flush()
        link.close()


@pytest.mark.parametrize("data", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"x" * 70_000])
def test_what_is_no_answer(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        AnswerReader().feed(data)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return frame_header(len(payload), kind, flags, stream) + payload


def response(stream: int, message: bytes, encoder: hpack.Encoder, *, status: str = "0", text: str = "") -> bytes:
    trailers = [("grpc-status", status)] + ([("grpc-message", text)] if text else [])
    return b"".join(
        [
            _frame(1, 4, stream, encoder.encode([(":status", "200"), ("content-type", "application/grpc")])),
            *(_frame(0, 0, stream, part) for part in (frame_message(message)[:7], frame_message(message)[7:])),
            _frame(1, 5, stream, encoder.encode(trailers)),
        ]
    )


@given(CUTS)
def test_calls_of_grpc_are_read_however_they_are_cut(cuts: list[int]) -> None:
    connection = GrpcConnection("h:1", "/service/Method")
    streams = [connection.call(frame_message(b"question")) for _ in range(3)]
    encoder = hpack.Encoder()
    data = b"".join(
        [
            _frame(4, 0, 0, b""),
            response(streams[2], b"third" * 3, encoder),
            response(streams[0], b"first" * 3, encoder),
            response(streams[1], b"", encoder, status="3", text="caf%C3%A9"),
        ]
    )
    found = [each for piece in pieces(data, cuts) for each in connection.feed(piece)]
    assert [(stream, answer.status, answer.body) for stream, answer in found] == [
        (streams[2], 0, b"third" * 3),
        (streams[0], 0, b"first" * 3),
        (streams[1], 3, "café".encode()),
    ]
    assert connection.calls == 0


def test_a_large_message_waits_for_room() -> None:
    connection = GrpcConnection("h:1", "/service/Method")
    connection.call(frame_message(b"x" * 100_000))
    first = connection.outgoing()
    assert 65_535 < len(first) < 66_500
    assert connection.outgoing() == b""
    room = (200_000).to_bytes(4, "big")
    connection.feed(_frame(8, 0, 0, room) + _frame(8, 0, 1, room))
    rest = connection.outgoing()
    assert len(rest) == 100_005 - 65_535 + 9 * 3


def test_headers_of_later_calls_are_a_few_bytes() -> None:
    connection = GrpcConnection("h:1", "/service/Method", [("x-key", "secret")])
    sizes = []
    for _ in range(3):
        connection.call(frame_message(b""))
        sizes.append(len(connection.outgoing()))
    assert sizes[1] == sizes[2] < 50 < sizes[0]


def test_a_final_flag_without_outputs_is_no_response() -> None:
    """A stream's answer keeps its body only where there are outputs: a last response, or the only one."""

    def answer(*outputs: str, final: bool) -> AnswerPart:
        message = message_class("inference.ModelStreamInferResponse")()
        response = message.infer_response
        response.model_name, response.model_version, response.id = "m" * 200, "1", "seven"
        if final:
            response.parameters["triton_final_response"].bool_param = True
        for output in outputs:
            response.outputs.add(name=output, datatype="INT8", shape=[1])
            response.raw_output_contents.append(b"\0")
        return _stream_answer(AnswerPart(0, message.SerializeToString(), False))

    assert [(bool(found.body), found.final) for found in (answer("A", final=False), answer("A", final=True))] == [
        (True, False),
        (True, True),
    ]
    assert answer(final=True) == AnswerPart(0, b"", True)


def test_an_event_that_is_an_error_fails_the_request() -> None:
    """It has failed when the answer ends, so that the connection can be used again."""
    events = Events()
    pieces = [AnswerPart(200, b'data: {"token": 1}\n\ndata: {"error": "out of luck"}\n\n', False), AnswerPart(200, b"", True)]
    found = list(events.of(pieces))
    assert [(answer.status, answer.final) for answer in found] == [(200, False), (-1, True)]
    assert error_text(found[-1]) == "out of luck"


def chunk(usage: object = None, **delta: object) -> bytes:
    choices = [{"index": 0, "delta": delta}] if usage is None else []
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


def test_only_events_with_tokens_are_responses_of_a_chat() -> None:
    """The first of a stream has the role and no token: its time is not that of the first token."""
    call = {"tool_calls": [{"index": 0}]}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    begin, end, done = chunk(role="assistant", content=""), chunk(), b"data: [DONE]\n\n"
    for last, tokens in ((chunk(usage=usage), TokenCounts(7, 5)), (b"", TokenCounts(0, 3))):
        stream = begin + chunk(content="a") + chunk(content="b") + chunk(**call) + end + last + done
        events = Events(TokenEvents())
        for _ in range(2):  # a connection has one answer after another
            found = list(
                events.of([AnswerPart(200, stream[:50], False), AnswerPart(200, stream[50:], False), AnswerPart(200, b"", True)])
            )
            assert [(answer.final, answer.tokens) for answer in found] == [(False, None)] * 3 + [(True, tokens)]


def test_tokens_of_whole_answers() -> None:
    assert tokens_of(b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}') == TokenCounts(3, 4)
    assert tokens_of(b'{"usage": {"prompt_tokens": 3}}') == TokenCounts(3, 0), "embeddings"
    for body in (b"{}", b"[]", b"{", b'{"usage": {}}'):
        assert tokens_of(body) is None


def test_a_server_without_a_header_table_gets_whole_headers() -> None:
    connection = GrpcConnection("h:1", "/service/Method", [("x-key", "secret")])
    connection.call(frame_message(b""))
    connection.feed(settings_frame([(1, 0)]))
    connection.outgoing()
    connection.call(frame_message(b""))
    decoder = hpack.Decoder()  # of a server whose table is empty: what an earlier block put into it is no more
    sent = connection.outgoing()
    length = int.from_bytes(sent[:3], "big")
    assert ("x-key", "secret") in decoder.decode(sent[9 : 9 + length])


def test_a_request_over_http_is_what_the_servers_decoder_expects() -> None:
    values = np.arange(4, dtype=np.float32).reshape(1, 4)
    call = PlannedCall(
        model="a b", version="2", inputs=(Tensor("X", DataType.FP32, values),), outputs=("Y",), parameters={"p": 1}
    )
    head, _, body = encode_http(call, "h:1").fill(SequencePlace(7, True, False)).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/a%20b/versions/2/infer HTTP/1.1\r\nHost: h:1\r\n")
    length = int(head.partition(b"Inference-Header-Content-Length: ")[2])
    assert body[:length].startswith(b'{"parameters":{"p":1,"sequence_id":7,"sequence_start":true,"sequence_end":false},')
    assert body[length:] == values.tobytes()
    assert f"Content-Length: {len(body)}\r\n".encode() in head


def test_a_place_in_a_sequence_is_appended_to_a_message() -> None:
    template = encode_grpc(PlannedCall(model="m", parameters={"p": True}))
    framed = template.fill(SequencePlace(300, False, True))
    message = message_class("inference.ModelInferRequest").FromString(framed[5:])
    assert message.parameters["sequence_id"].int64_param == 300
    assert message.parameters["sequence_start"].bool_param is False
    assert message.parameters["sequence_end"].bool_param is True
    assert message.parameters["p"].bool_param is True


def test_answers_are_read_as_tensors() -> None:
    body = b'{"outputs":[{"name":"A","datatype":"INT32","shape":[2],"data":[1,2]},{"name":"B","datatype":"INT8","shape":[3],'
    body += b'"parameters":{"binary_data_size":3}}]}'
    found = read_http(AnswerPart(200, body + b"\1\2\3", True, {"inference-header-content-length": str(len(body))}))
    assert [(tensor.name, tensor.array.tolist()) for tensor in found] == [("A", [1, 2]), ("B", [1, 2, 3])]
    with pytest.raises(BrokenAnswer):
        read_http(AnswerPart(200, b"{}", True))
    with pytest.raises(BrokenAnswer):
        read_grpc(b"\xff")
