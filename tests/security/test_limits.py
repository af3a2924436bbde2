"""Sizes, counts and slowness. The time-outs themselves are tested in virtual time: tests/frontends/http/test_time_outs.py."""

from __future__ import annotations

import contextlib
import json
import socket
import struct

import grpc
import h2.config
import h2.connection
import pytest

from tests.pace import at_pace
from tpy._proto import message_class

from .attacker import Attacker, tensor
from .test_http2 import CALL, PREFACE, frame, headers

SERVICE = "/inference.GRPCInferenceService/"
STREAM = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", f"{SERVICE}ModelStreamInfer"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
HEADS = {
    "one long header": GET + b"X: " + b"x" * 1_000_000 + b"\r\n\r\n",
    "a header without end": GET + b"X: " + b"x" * 5_000_000,
    "a name without end": GET + b"X" * 5_000_000,
    "many headers": GET + b"".join(b"X%d: y\r\n" % number for number in range(100_000)) + b"\r\n",
    "empty headers": GET + b"X:\r\n" * 500_000 + b"\r\n",
    "a long target": b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target without end": b"GET /" + b"x" * 5_000_000,
    "a method without end": b"G" * 5_000_000,
    "empty lines": b"\r\n" * 2_000_000,
    "long chunk extensions": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 5_000_000,
    "many chunk extensions": POST + b"Transfer-Encoding: chunked\r\n\r\n" + (b"1;" + b"x" * 100 + b"\r\nx\r\n") * 30_000,
    "trailers without end": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 500_000,
    "a chunk size without end": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 5_000_000,
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_have_bounds(attacker: Attacker, kind: str) -> None:
    resident = attacker.resident_bytes()
    said = attacker.flood(HEADS[kind], attacker.server.http)
    assert len(said) < 10_000
    assert said == b"" or said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), said
    assert attacker.resident_bytes() - resident < 30_000_000


def test_bodies_have_bounds(attacker: Attacker) -> None:
    """CVE-2025-33201: a large body ended the server. The cap is 4 MB here."""
    resident = attacker.resident_bytes()
    for size in (4_000_001, 10_000_000):
        assert attacker.ask("POST", "/v2/models/affine/infer", b" " * size).status == 400
    for size in (10**12, 2**63 - 1):
        [answer] = attacker.exchange(POST + b"Content-Length: %d\r\n\r\n{}" % size)
        assert answer.status == 400
    chunks = b"".join(b"10000\r\n" + b" " * 65_536 + b"\r\n" for _ in range(100)) + b"0\r\n\r\n"
    [answer] = attacker.exchange(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert answer.status == 400
    assert attacker.resident_bytes() - resident < 30_000_000


def test_half_requests_hold_up_nobody(attacker: Attacker) -> None:
    """Slowloris: heads and bodies that never end, 300 each. Others are served at once; memory is what came."""
    resident = attacker.resident_bytes()
    with contextlib.ExitStack() as stack:
        for number in range(600):
            connection = stack.enter_context(attacker.connect())
            connection.sendall(GET + b"X: " if number % 2 else POST + b"Content-Length: 3999999\r\n\r\n{")
        began = attacker.server.cpu_s()
        attacker.check_served()
        assert attacker.server.cpu_s() - began < at_pace(5.0)
        assert attacker.resident_bytes() - resident < 100_000_000


def test_many_requests_ahead_are_not_read(attacker: Attacker) -> None:
    """Pipelined requests of a client that reads nothing stay in the kernel's buffers."""
    resident = attacker.resident_bytes()
    with attacker.connect() as connection:
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while True:
                connection.sendall(b"GET /v2/models/affine/config HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        assert attacker.resident_bytes() - resident < 30_000_000
        attacker.check_served()


def test_answers_that_nobody_reads_stop_the_stream(attacker: Attacker) -> None:
    """Empty messages are 5 bytes each, and each is answered with an error. This client takes none of them."""
    resident = attacker.resident_bytes()
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    with attacker.connect(attacker.server.grpc) as connection:
        connection.settimeout(1)
        client.send_headers(1, STREAM)
        connection.sendall(client.data_to_send())
        messages = bytes(5) * 3_000
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 20_000_000:
                # Only what the server says of its windows counts; the answers are not acknowledged.
                if client.local_flow_control_window(1) <= len(messages):
                    client.receive_data(connection.recv(1 << 20))
                else:
                    client.send_data(1, messages)
                    sent += len(messages)
                connection.sendall(client.data_to_send())
        assert sent < 20_000_000, "the server read on"
        assert attacker.resident_bytes() - resident < 150_000_000
        attacker.check_served()


def _grpc_refusal(attacker: Attacker, request: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> grpc.StatusCode:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 2**30)]
    with grpc.insecure_channel(attacker.server.grpc, options=options) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(f"{SERVICE}ModelInfer")(request, timeout=20, metadata=metadata)
        code = caught.value.code()
        assert isinstance(code, grpc.StatusCode)
        return code


def test_messages_have_bounds(attacker: Attacker) -> None:
    resident = attacker.resident_bytes()
    assert _grpc_refusal(attacker, bytes(4_000_001)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _grpc_refusal(attacker, bytes(50_000_000)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    # A name, a version and an id of a megabyte each.
    request = message_class("inference.ModelInferRequest")(model_name="x" * 10**6, model_version="1", id="x" * 10**6)
    assert _grpc_refusal(attacker, request.SerializeToString()) in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
    # Protobuf groups within groups: a parser that recurses has no stack for them.
    assert _grpc_refusal(attacker, b"\xa3\x06" * 1_000_000) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
    assert attacker.resident_bytes() - resident < 60_000_000


def test_metadata_have_bounds(attacker: Attacker) -> None:
    request = message_class("inference.ModelInferRequest")(model_name="affine").SerializeToString()
    for metadata in ((("x", "y" * 1_000_000),), tuple((f"x{number}", "y") for number in range(20_000))):
        code = _grpc_refusal(attacker, request, metadata)
        assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize("length", [2**32 - 1, 2**31, 4_000_001])
@pytest.mark.parametrize("flag", [0, 1, 255])
def test_lengths_of_messages_are_not_believed(attacker: Attacker, length: int, flag: int) -> None:
    resident = attacker.resident_bytes()
    data = frame(0, 0, 1, struct.pack(">BI", flag, length) + b"x" * 100)
    with attacker.connect(attacker.server.grpc) as connection:
        connection.sendall(PREFACE + frame(4, 0, 0) + headers(CALL, end=False) + data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    assert attacker.resident_bytes() - resident < 30_000_000


def test_tensors_of_bytes_are_not_made_before_they_came(attacker: Attacker) -> None:
    """CVE-2026-24173, CVE-2024-53880: sizes whose sum or product wraps."""
    request = message_class("inference.ModelInferRequest")(model_name="affine")
    request.inputs.add(name="INPUT", datatype="BYTES", shape=[2**40])
    request.raw_input_contents.append(struct.pack("<I", 2**32 - 1) * 4)
    resident = attacker.resident_bytes()
    assert _grpc_refusal(attacker, request.SerializeToString()) is grpc.StatusCode.INVALID_ARGUMENT
    document = {"inputs": [tensor(["x"], shape=[2**40], datatype="BYTES")]}
    assert attacker.ask("POST", "/v2/models/affine/infer", json.dumps(document).encode()).status == 400
    assert attacker.resident_bytes() - resident < 30_000_000
