"""Tensors on devices that cross the border of a worker's process, by handle: a fake device's memory is shared as a GPU's is."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.backends.python.calls import FakeServer, surround
from tests.backends.python.conftest import Serve, Served, request
from tests.e2e.waiting import wait_until
from tpy.backend import InstanceFailure
from tpy.devices import DeviceArray, Devices
from tpy.errors import InvalidArgument, TpyError
from tpy.messages import DataType, RegionFacts, RegionKind, Residency, Tensor
from tpy.regions import CountedRegion, DeviceRegion, RegionArray, RegionCopies
from tpy.testing import FakeDevice
from tpy.testing.requests import RecordingSender, SampleRequest
from tpy_data.backends.python.protocol.device_tensors import DeviceTensors
from tpy_data.backends.python.worker.wire.core.frames import ProtocolViolation
from tpy_data.backends.python.worker.wire.segments import Lender

CODE = """
import ctypes

try:
    import tpy_device_sharing
    sharing = tpy_device_sharing.make()
except ImportError:
    pass

def get(name, restype, *argtypes):
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = restype, argtypes
    return function

pointer = get("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)

def look(tensor):
    "As a kernel would, at what is on the device."
    capsule = tensor.to_dlpack()
    data = ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value
    return np.ctypeslib.as_array((ctypes.c_float * tensor.shape()[0]).from_address(data)).copy()

class OnGpu:
    "A framework's tensor on device 0."
    def __init__(self, array):
        self.address = sharing.allocate(4096) + 256
        self.array = np.ctypeslib.as_array((ctypes.c_float * len(array)).from_address(self.address))
        self.array[:] = array
        self.streams = []
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        capsule = self.array.__dlpack__()
        ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 2
        return capsule

class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]
    def one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "IN")
"""

STAYS = {"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


class Gpu:
    """A fake device in a server, whose pool is off, so that what is open can be counted."""

    def __init__(self, make: Serve, body: str, parameters: Mapping[str, str] = STAYS, **options: Any) -> None:
        self.device = FakeDevice(0)
        self.devices = Devices([self.device], pinned_pool_bytes=0, cuda_pool_bytes={0: 0})
        self.served: Served = make(CODE + "        " + body.strip() + "\n", parameters=parameters, **options)
        self.served.context = msgspec.structs.replace(self.served.context, devices=self.devices)

    def request(self, *values: float, keeps: bool = False) -> SampleRequest:
        """With its input on the device; `keeps`: whoever asks takes the output there."""
        array = self.devices.to_device(np.array(values, np.float32), 0).as_array()
        residency = Residency(inputs=True, outputs=None if keeps else frozenset())
        return request(inputs={"IN": Tensor("IN", DataType.FP32, array)}, residency=residency)

    def wait_open(self, count: int) -> None:
        """Wait until the server has so many allocations. What a worker has returned is freed beside the answer."""

        def has() -> bool:
            gc.collect()
            return self.device.counts["open"] == count

        wait_until(has)


def test_an_input_stays_where_it_is(make: Serve) -> None:
    gpu = Gpu(
        make,
        """
        try:
            x.as_numpy()
        except pb_utils.TritonModelException as error:
            assert str(error) == "Tensor is stored in GPU and cannot be converted to NumPy."
        assert not x.is_cpu() and x.__dlpack_device__() == (2, 0) and x.triton_dtype() == 11
        return answer(tensor(np.array([look(x).sum(), x.shape()[0]], np.float32)))
""",
    )
    assert gpu.served.output(gpu.request(1, 2, 3)).tolist() == [6, 3]
    assert gpu.device.counts["out"] == gpu.device.counts["within"] == 0
    assert gpu.served.output(gpu.request(5)).tolist() == [5, 1]
    gpu.wait_open(0)  # the second answer has returned the second input, too


@pytest.mark.parametrize("parameters", [{}, {"FORCE_CPU_ONLY_INPUT_TENSORS": "yes"}])
def test_by_default_inputs_are_copied_to_the_host(make: Serve, parameters: dict[str, str]) -> None:
    gpu = Gpu(make, "return answer(tensor(x.as_numpy() + float(x.is_cpu())))", parameters)
    assert gpu.served.output(gpu.request(1, 2)).tolist() == [2, 3]
    assert gpu.device.counts["out"] == 1


@pytest.mark.parametrize(("parameters", "copies"), [(STAYS, (0, 1)), ({}, (1, 0))], ids=["stays", "host"])
def test_an_input_in_a_clients_region_is_copied_once(make: Serve, parameters: dict[str, str], copies: tuple[int, int]) -> None:
    gpu = Gpu(make, "return answer(tensor(np.array([x.is_cpu(), (x.as_numpy() if x.is_cpu() else look(x)).sum()])))", parameters)
    client = FakeDevice(0)
    memory = client.allocate(16)
    client.copy_in(memory.address, np.array([9, 1, 2, 4], np.float32).view(np.uint8))
    facts = RegionFacts(name="r", kind=RegionKind.CUDA, key="", offset=0, byte_size=16, device_id=0)
    opened = gpu.device.open_ipc(client.export_ipc(memory.address).handle)
    region = DeviceRegion(facts, opened, RegionCopies(), gpu.devices)
    array = RegionArray(CountedRegion(region, 12), (3,), np.dtype(np.float32), 4).as_array()
    given = request(inputs={"IN": Tensor("IN", DataType.FP32, array)}, residency=Residency(inputs=True))
    assert gpu.served.output(given).tolist() == [parameters is not STAYS, 7]
    assert (gpu.device.counts["out"], gpu.device.counts["within"]) == copies


def test_another_value_is_refused(make: Serve) -> None:
    gpu = Gpu(make, "pass", {"FORCE_CPU_ONLY_INPUT_TENSORS": "maybe"})
    with pytest.raises(InvalidArgument, match="Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe"):
        gpu.served.run(gpu.request(1))


MADE = """
        made = OnGpu(look(x) * 2)
        out = pb_utils.Tensor.from_dlpack("OUT", made)
        assert made.streams == [1], "what makes it is waited for"
        return answer(out)
"""


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(
    ("body", "factor"), [(MADE, 2), ("""return answer(pb_utils.Tensor.from_dlpack("OUT", x))""", 1)], ids=["made", "input"]
)
def test_an_output_comes_back_by_handle(make: Serve, body: str, factor: int, *, keeps: bool) -> None:
    gpu = Gpu(make, body)
    for value in (3, 4):
        found: Any = gpu.served.output(gpu.request(value, 8, keeps=keeps))
        assert isinstance(found, DeviceArray) is keeps
        array = found.to_host() if isinstance(found, DeviceArray) else found
        assert array.tolist() == [value * factor, 8 * factor]
    assert gpu.device.counts["within"] == 2 * keeps, "to the server's own memory, as the worker may die"
    pid = gpu.served.python.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InstanceFailure):
        gpu.served.run(gpu.request(1))
    if isinstance(found, DeviceArray):
        assert found.to_host().tolist() == array.tolist()
    del found
    gpu.served.close()
    gpu.wait_open(0)


def test_what_a_model_keeps_stays_and_is_freed_when_it_lets_go_or_dies(make: Serve) -> None:
    gpu = Gpu(
        make,
        """
        first = look(x)[0]
        if first == 1:
            self.kept = x
        elif first == 2:
            x = self.kept
            del self.kept
        return answer(tensor(look(x)))
""",
    )
    assert gpu.served.output(gpu.request(1, 7)).tolist() == [1, 7]
    assert gpu.served.output(gpu.request(0)).tolist() == [0]
    gpu.wait_open(1)
    assert gpu.served.output(gpu.request(2)).tolist() == [1, 7]
    assert gpu.served.output(gpu.request(0)).tolist() == [0]
    gpu.wait_open(0)
    gpu.served.output(gpu.request(1))
    gpu.wait_open(1)
    os.kill(gpu.served.python.pid, signal.SIGKILL)
    with pytest.raises(InstanceFailure):
        gpu.served.run(gpu.request(0))
    gpu.served.close()
    gpu.wait_open(0)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_response_of_a_decoupled_model_stays_where_it_is_taken_there(make: Serve, *, keeps: bool) -> None:
    gpu = Gpu(
        make,
        """
        sender = request.get_response_sender()
        sender.send(answer(pb_utils.Tensor.from_dlpack("OUT", OnGpu(look(x) * 2))))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    def execute(self, requests):
        for request in requests:
            self.one(request)
""",
        decoupled=True,
    )
    sender = RecordingSender()
    gpu.served.run(dataclasses.replace(gpu.request(4, keeps=keeps), sender=sender))
    assert sender.finished.wait(20)
    (found,) = [result.outputs[0].array for result, _ in sender.sent if result is not None]
    there: object = found
    assert isinstance(there, DeviceArray) is keeps
    assert (there.to_host() if isinstance(there, DeviceArray) else found).tolist() == [8]


@pytest.mark.parametrize("prefers", [False, True])
def test_calls_of_models_pass_tensors_on_the_device(make: Serve, *, prefers: bool) -> None:
    gpu = Gpu(
        make,
        f"""
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_{"GPU" if prefers else "CPU"}, 0)
        response = pb_utils.InferenceRequest(
            model_name="n", requested_output_names=["OUT"], inputs=[x], preferred_memory=memory
        ).exec()
        out = response.output_tensors()[0]
        return answer(tensor(np.array([look(out)[0], float(out.is_cpu())], np.float32)))
""",
    )
    server = FakeServer()
    seen: list[Any] = []

    def behave(call: Any) -> None:
        (given,) = call.request.inputs
        seen.append((type(given.array), call.request.residency))
        array = given.array if prefers else given.array.to_host()
        call.answer(Tensor("OUT", given.datatype, array))

    server.behave = behave
    surround(gpu.served, server)
    gpu.served.context = msgspec.structs.replace(gpu.served.context, devices=gpu.devices)
    assert gpu.served.output(gpu.request(9)).tolist() == [9, float(not prefers)]
    assert seen == [(DeviceArray, Residency(inputs=True, outputs=None if prefers else frozenset()))]
    server.calls.clear()
    gpu.served.close()
    gpu.wait_open(0)


class _Ends:
    """Stands for the endpoint: what the server has lent."""

    def __init__(self) -> None:
        self.lender = Lender()
        self.returned: list[int] = []

    def lend_memory(self, memory: object) -> int:
        return self.lender.lend(memory)

    def lent_memory(self, loan: int) -> Any:
        return self.lender.lent(loan)

    def forget(self, loans: Any) -> None:
        self.lender.forget(loans)

    def release(self, loan: int) -> None:
        self.returned.append(loan)


@pytest.mark.parametrize(
    ("where", "offset", "shape", "size"),
    [
        ("0 7 00ff", 0, (2,), 8),
        ("0 7 zz", 0, (2,), 8),
        ("0 7", 0, (2,), 8),
        ("0 7 @9", 0, (2,), 8),
        ("1 7 @1", 0, (2,), 8),
        ("3 7 00", 0, (2,), 8),
        ("0 7 @1", 4, (2,), 8),
        ("0 7 @1", -4, (2,), 8),
        ("0 7 @1", 0, (3,), 12),
        ("0 7 @1", 0, (2,), 4),
        ("0 7 @1", 0, (-2,), -8),
        ("0 7 @1", 0, (2**62, 8), 8),
        ("0 7 @1\n", 0, (2,), 8),
        ("0 7 {handle}", 4096, (2,), 8),
        ("0 7 {handle}", 2**62, (2,), 8),
    ],
)
def test_a_worker_that_lies(where: str, offset: int, shape: tuple[int, ...], size: int) -> None:
    device = FakeDevice(0)
    devices = Devices([device, FakeDevice(1)], cuda_pool_bytes={0: 0, 1: 0})
    ends: Any = _Ends()
    tensors = DeviceTensors(ends, devices)
    lent = devices.to_device(np.array([1, 2], np.float32), 0)
    said, begin, _ = tensors.lend(lent)
    assert said.startswith("0 1 ")
    good = tensors.take(("OUT", 11, (2,), "0 5 @1", begin, 8), stays=False)
    assert good.tolist() == [1, 2]
    with pytest.raises((ProtocolViolation, TpyError)) as caught:
        tensors.take(("OUT", 11, shape, where.format(handle=said.split()[2]), begin + offset, size), stays=False)
    assert isinstance(caught.value, ProtocolViolation), "it is not to be trusted any more"
    assert set(ends.returned) <= {5, 7}
