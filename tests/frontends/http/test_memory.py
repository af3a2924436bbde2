"""The memory of a request is released at once, not when the garbage collector comes by."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import trio

from tpy.frontends.http.parser import RequestParser

from .fakes import FakeServices
from .harness import INFER, post, running

ELEMENTS = 50_000


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def large_request() -> bytes:
    blob = np.zeros(ELEMENTS, np.float32).tobytes()
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, ELEMENTS], "parameters": {"binary_data_size": len(blob)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    return post(INFER, head + blob, f"Inference-Header-Content-Length: {len(head)}")


@pytest.mark.parametrize("immediate", [True, False])
async def test_an_answered_request_leaves_nothing_behind(*, immediate: bool) -> None:
    services = FakeServices()
    services.inference.immediate = immediate
    async with running(services) as server:
        client = await server.connect()
        await client.send(large_request())
        await services.inference.wait_submitted(1)
        [submitted] = services.inference.submitted
        array = weakref.ref(submitted.request.inputs[0].array)
        services.inference.submitted.clear()
        if not immediate:
            submitted.answer()
        del submitted
        assert (await client.answer()).status == 200
        assert array() is None


async def test_a_request_whose_sender_left_leaves_nothing_behind() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(large_request())
        await services.inference.wait_submitted(1)
        [submitted] = services.inference.submitted
        array = weakref.ref(submitted.request.inputs[0].array)
        services.inference.submitted.clear()
        await trio.aclose_forcefully(client.stream)
        await submitted.ended.wait()
        del submitted
        while array() is not None:
            await trio.lowlevel.checkpoint()


def test_half_a_body_is_dropped_with_its_connection() -> None:
    parser = RequestParser(max_input_size=10_000_000)
    parser.feed(large_request()[:100_000])
    assert parser.bulk is not None
    body = weakref.ref(parser.bulk.obj)
    parser.drop()
    assert body() is None


@pytest.mark.parametrize("header_length", ["0", "1", "77", "130", "99999999999999999999", "9" * 60, "-3", "x"])
def test_a_large_tensor_begins_where_it_can_be_used_without_a_copy(header_length: str) -> None:
    parser = RequestParser(max_input_size=1 << 20)
    body = np.random.default_rng(7).bytes(200_000)
    parser.feed(post(INFER, body, f"Inference-Header-Content-Length: {header_length}"))
    if parser.bulk is not None:
        parser.bulk_received(len(parser.bulk))
    [request] = parser.complete
    assert bytes(request.body) == body
    offset = int(header_length) if header_length.isdigit() and len(header_length) <= 20 else 0
    assert (np.frombuffer(request.body, np.uint8).ctypes.data + offset) % 64 == 0


async def test_generate_leaves_nothing_behind() -> None:
    services = FakeServices()
    services.inference.immediate = False
    async with running(services) as server:
        client = await server.connect()
        await client.send(post("/v2/models/m/generate", json.dumps({"INPUT0": [1.5] * 1000})))
        await services.inference.wait_submitted(1)
        [submitted] = services.inference.submitted
        array = weakref.ref(submitted.request.inputs[0].array)
        services.inference.submitted.clear()
        submitted.answer()
        del submitted
        assert (await client.answer()).status == 200
        assert array() is None
