"""The memory of a request is released at once, not when the garbage collector comes by."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import trio
import trio.testing
import tritonclient.grpc as triton
from grpclib.const import Status
from tritonclient.grpc import service_pb2

from .fakes import FakePort, infer_request, port
from .harness import running

ELEMENTS = 50_000


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _large(model: str = "m") -> bytes:
    request = infer_request(model, data=bytes(4 * ELEMENTS))
    request.inputs[0].shape[:] = [1, ELEMENTS]
    return request.SerializeToString()


def _array(server: FakePort) -> weakref.ref[object]:
    return weakref.ref(server.services.inference.submitted[-1].request.inputs[0].array)


@pytest.mark.parametrize("immediate", [True, False])
async def test_an_answered_call_leaves_nothing_behind(immediate: bool) -> None:
    async with port() as server:
        server.services.inference.immediate = immediate
        call = server.begin("ModelInfer", _large())
        array = _array(server)
        submitted = server.services.inference.submitted.pop()
        if not immediate:
            submitted.answer()
        del submitted
        assert call.status is Status.OK
        assert array() is None


async def test_the_files_of_a_load_call_are_copied_twice_at_most() -> None:
    """Beside the message itself: once for Google's library, whose own copy is not counted here, and once to be kept."""
    size = 20 * 2**20
    load = service_pb2.RepositoryModelLoadRequest(model_name="m")
    load.parameters["file:1/model.onnx"].bytes_param = bytes(size)
    message = load.SerializeToString()
    async with port() as server:
        tracemalloc.start()
        try:
            await server.call("RepositoryModelLoad", message)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(server.services.repository.loads[0].files["1/model.onnx"]) == size
    assert peak < 2.1 * size


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    async with port() as server:
        server.services.inference.immediate = False
        call = server.begin("ModelInfer", _large())
        array = _array(server)
        call.cancel()
        server.services.inference.submitted.clear()
        assert array() is None


@pytest.mark.parametrize("model", ["m", "flow"])
@pytest.mark.parametrize("immediate", [True, False])
async def test_an_answered_request_of_a_stream_leaves_nothing_behind(model: str, immediate: bool) -> None:
    async with port() as server:
        server.services.inference.immediate = immediate
        call = server.open()
        call.request(_large(model))
        await server.services.inference.wait_submitted(1)
        array = _array(server)
        submitted = server.services.inference.submitted.pop()
        if not immediate:
            submitted.answer()
        del submitted
        await trio.testing.wait_all_tasks_blocked()
        assert len(call.responses) == 1
        assert array() is None


async def test_a_cancelled_stream_leaves_nothing_behind() -> None:
    async with port() as server:
        server.services.inference.immediate = False
        call = server.open()
        for model in ("m", "flow"):
            call.request(_large(model))
        await server.services.inference.wait_submitted(2)
        arrays = [weakref.ref(submitted.request.inputs[0].array) for submitted in server.services.inference.submitted]
        call.cancel()
        server.services.inference.submitted.clear()
        await trio.testing.wait_all_tasks_blocked()
        assert [array() for array in arrays] == [None, None]


async def test_over_the_wire_too() -> None:
    def use(url: str) -> None:
        with triton.InferenceServerClient(url) as client:
            given = triton.InferInput("INPUT0", [1, ELEMENTS], "FP32")
            given.set_data_from_numpy(np.zeros((1, ELEMENTS), np.float32))
            client.infer("m", [given])

    async with running() as server:
        await server.using(use)
        [submitted] = server.services.inference.submitted
        array = weakref.ref(submitted.request.inputs[0].array)
        server.services.inference.submitted.clear()
        del submitted
        assert array() is None
