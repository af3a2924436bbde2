"""Tensors stay on the device where they were made until somebody needs them in host memory: counted copies on fake devices."""

from __future__ import annotations

import gc

import numpy as np
import trio
from trio.testing import MockClock

from tpy.config.model_config import ModelInput, ModelOutput, ResponseCache, TensorReshape
from tpy.messages import DataType, InferenceRequest, MemoryType, Residency, Tensor
from tpy_data.cache.options import LocalCacheOptions

from .ensembles import Stream, ensemble, serve_all, step, submit
from .fakes import Rig, config, dynamic, rig, tensor
from .gpus import GpuBackend
from .test_model_calls import Sink

CPU, GPU = MemoryType.CPU, MemoryType.GPU


def backend_of(r: Rig) -> GpuBackend:
    assert isinstance(r.backend, GpuBackend)
    return r.backend


async def ended(stream: Stream) -> Stream:
    with trio.fail_after(5):
        await stream.final.wait()
    return stream


async def test_a_chain_of_gpu_models_is_copied_in_once_and_out_once(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("gpu_b", "A", "B"), step("gpu_c", "B", "OUT"))
        await serve_all(r, config("gpu_a"), config("gpu_b"), config("gpu_c"), chain)
        stream = await ended(submit(r, value=1))
        assert stream.values == [4]
        assert backend_of(r).places == [("gpu_a", [CPU]), ("gpu_b", [GPU]), ("gpu_c", [GPU])]
        assert backend_of(r).copies == (1, 1, 0)
        assert isinstance(stream.responses[0].outputs[0].array, np.ndarray)
        backend_of(r).batches.clear()
        del stream
        gc.collect()
        assert backend_of(r).devices.pool_used_bytes(0) == 0, "nobody keeps what is not needed any more"


async def test_a_host_model_in_between_costs_a_copy_each_way(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("host", "A", "B"), step("gpu_c", "B", "OUT"))
        await serve_all(r, config("gpu_a"), config("host"), config("gpu_c"), chain)
        assert (await ended(submit(r, value=1))).values == [4]
        assert backend_of(r).places == [("gpu_a", [CPU]), ("host", [CPU]), ("gpu_c", [CPU])]
        assert backend_of(r).copies == (2, 2, 0)


async def test_another_device_gets_a_copy_by_the_host(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("other", "A", "OUT"))
        await serve_all(r, config("gpu_a"), config("other"), chain)
        assert (await ended(submit(r, value=1))).values == [3]
        first, second = (device.counts for device in backend_of(r).fakes)
        assert (first["in"], first["out"], second["in"], second["out"]) == (1, 1, 1, 1)


async def test_a_tensor_that_is_also_an_answer_is_in_host_memory(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        shown = ensemble(
            "e",
            step("gpu_a", "IN", "OUT"),
            step("gpu_b", "OUT", "LATER"),
            output=tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(2,)) for name in ("OUT", "LATER")),
        )
        await serve_all(r, config("gpu_a"), config("gpu_b"), shown)
        stream = await ended(submit(r, value=1))
        assert [float(output.array.flat[0]) for output in stream.responses[0].outputs] == [2, 3]
        assert backend_of(r).copies == (2, 2, 0)


async def test_shapes_change_without_a_copy(autojump_clock: MockClock) -> None:
    """A step that does not batch, and one whose configuration reshapes."""
    async with rig(backend=GpuBackend()) as r:
        reshaped = config(
            "gpu_b",
            input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(2,), reshape=TensorReshape(shape=(1, 2))),),
            output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,), reshape=TensorReshape(shape=(1, 2))),),
        )
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("gpu_b", "A", "B"), step("gpu_c", "B", "OUT"))
        await serve_all(r, config("gpu_a"), reshaped, config("gpu_c"), chain)
        stream = await ended(submit(r, value=1))
        assert (stream.values, stream.responses[0].outputs[0].array.shape) == ([4], (1, 2))
        assert backend_of(r).copies == (1, 1, 0)


async def test_a_batch_is_joined_on_the_device(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("gpu_b", "A", "OUT"))
        await serve_all(r, config("gpu_a"), config("gpu_b", dynamic_batching=dynamic(10)), chain)
        streams = [submit(r, value=value) for value in (1, 10)]
        assert [(await ended(stream)).values for stream in streams] == [[3], [12]]
        assert ("gpu_b", [GPU, GPU]) in backend_of(r).places
        assert backend_of(r).copies == (2, 1, 2), "each in, both together out, and joined within"


async def test_a_batch_of_host_and_device_tensors(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("gpu_b", "A", "OUT"))
        await serve_all(r, config("gpu_a"), config("gpu_b", dynamic_batching=dynamic(10)), chain)
        streams = [submit(r, value=1), submit(r, model="gpu_b", value=10)]
        assert [(await ended(stream)).values for stream in streams] == [[3], [11]]
        assert backend_of(r).copies == (2, 1, 1)


async def test_a_call_of_a_model_gets_what_it_takes(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        await serve_all(r, config("gpu_a"))
        for residency, memory, copies in ((None, CPU, (1, 1, 0)), (Residency(outputs=None), GPU, (2, 1, 0))):
            sink = Sink()
            asked = InferenceRequest(model_name="gpu_a", inputs=(tensor(1, 2),), residency=residency)
            r.calls.infer(asked, sink, streams=False)
            await sink.ended.wait()
            (output,) = sink.responses[0].outputs
            assert (output.place.memory, backend_of(r).copies) == (memory, copies)
        again = Sink()  # and can pass it on
        given = (Tensor("IN", DataType.FP32, output.array),)
        r.calls.infer(InferenceRequest(model_name="gpu_a", inputs=given, residency=Residency(inputs=True)), again, streams=False)
        await again.ended.wait()
        assert again.responses[0].outputs[0].array.tolist() == [[3, 3]]
        assert backend_of(r).copies == (2, 2, 0)


async def test_what_a_caller_of_an_ensemble_takes_stays_on_the_device(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend()) as r:
        await serve_all(r, config("gpu_a"), ensemble("e", step("gpu_a", "IN", "OUT")))
        stream = await ended(submit(r, residency=Residency(outputs=frozenset({"OUT"}))))
        assert stream.responses[0].outputs[0].place.memory is GPU
        assert backend_of(r).copies == (1, 0, 0)


async def test_the_cache_keeps_host_memory_and_is_not_asked_about_devices(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend(), cache=LocalCacheOptions(size_bytes=1 << 20)) as r:
        cached = ResponseCache(enable=True)
        chain = ensemble("e", step("gpu_a", "IN", "A"), step("gpu_b", "A", "B"), step("gpu_c", "B", "OUT"))
        models = (config("gpu_a", response_cache=cached), config("gpu_b"), config("gpu_c", response_cache=cached))
        await serve_all(r, *models, chain)
        for _ in range(2):
            assert (await ended(submit(r, value=1))).values == [4]
        ran = [name for name, _ in backend_of(r).places]
        assert ran == ["gpu_a", "gpu_b", "gpu_c", "gpu_b", "gpu_c"]


async def test_an_output_on_a_device_that_nobody_takes_there_is_an_error(autojump_clock: MockClock) -> None:
    async with rig(backend=GpuBackend(lawless=True)) as r:
        await serve_all(r, config("gpu_a"))
        stream = await ended(submit(r, model="gpu_a"))
        assert stream.errors == ["Internal: instance 'gpu_a_0' gave output 'OUT' on a device, where it may not stay"]
