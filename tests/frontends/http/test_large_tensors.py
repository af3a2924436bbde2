"""Tensors of many or long elements do not hold up the loop."""

from __future__ import annotations

import contextlib
import json
import struct
from http.client import HTTPConnection

import pytest
import trio

from tpy.testing.loop_guard import LoopGuard

from .fakes import FakeServices
from .harness import INFER, post, running

HUGE = 20_000_000
"""Bytes of an element that takes long to be written."""


def many_elements(count: int) -> tuple[bytes, bytes]:
    """A request with a BYTES tensor of that many elements, and its blob."""
    blob = b"".join(b"%c\0\0\0%b" % (number % 3, b"ab"[: number % 3]) for number in range(count))
    tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, count], "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return post("/v2/models/text/infer", head + blob, f"Inference-Header-Content-Length: {len(head)}"), blob


async def test_many_bytes_elements_do_not_hold_up_the_loop(loop_guard: LoopGuard) -> None:
    request, blob = await trio.to_thread.run_sync(many_elements, 400_000)
    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(request)
        assert (answer.status, answer.body.endswith(blob)) == (200, True)


@pytest.mark.parametrize("word", ["BYTES", "B\\u0059TES"])
async def test_many_bytes_elements_for_a_model_of_numbers_do_not_either(loop_guard: LoopGuard, word: str) -> None:
    def request() -> bytes:
        sent, _ = many_elements(400_000)
        body = sent.partition(b"\r\n\r\n")[2]
        body = body.replace(b'"BYTES"', b'"%s"' % word.encode(), 1)
        length = body.rindex(b"}}") + 2
        return post(INFER, body, f"Inference-Header-Content-Length: {length}")

    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(await trio.to_thread.run_sync(request))
        assert answer.status == 200  # the engine, which would refuse it, is a fake


async def test_one_huge_element_does_not_hold_up_the_loop(loop_guard: LoopGuard) -> None:
    def ask(port: int) -> tuple[int, int]:
        blob = struct.pack("<I", HUGE) + b"\\" * HUGE
        tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(blob)}}
        head = json.dumps({"inputs": [tensor]}).encode()
        with contextlib.closing(HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", "/v2/models/text/infer", head + blob, {"Inference-Header-Content-Length": str(len(head))})
            response = connection.getresponse()
            return response.status, len(response.read())

    async with running(FakeServices()) as server:
        status, size = await trio.to_thread.run_sync(ask, server.address.port)
        assert status == 200
        assert size > 2 * HUGE  # as JSON, each byte escaped


async def test_many_classes_do_not_hold_up_the_loop(loop_guard: LoopGuard) -> None:
    blob = bytes(4 * 400_000)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 400_000], "parameters": {"binary_data_size": len(blob)}}
    output = {"name": "OUTPUT0", "parameters": {"binary_data": True, "classification": 400_000}}
    head = json.dumps({"inputs": [tensor], "outputs": [output]}).encode()
    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(post(INFER, head + blob, f"Inference-Header-Content-Length: {len(head)}"))
        assert answer.status == 200
        assert answer.body.endswith(b"0.000000:399999")
