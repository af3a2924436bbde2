"""Bindings: the inputs and outputs of a run at their addresses, on a device or in host memory (ONNX Runtime's IO binding)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tpy import dlpack
from tpy.devices import Array, Device, DeviceArray, DeviceMemory
from tpy.messages import DataType
from tpy_backends.onnxruntime.session import BFLOAT16, OnnxSession, RunOptions, to_array, to_value


class _Made(NamedTuple):
    """An output that ONNX Runtime allocates."""

    datatype: DataType
    on_device: bool


class Binding:
    """One binding. `device` is where arrays on a device are.

    After a run the outputs that ONNX Runtime made are the binding's memory: it serves one run, or runs whose outputs are copied.
    """

    def __init__(self, session: OnnxSession, device: Device) -> None:
        self._session = session
        self._device = device
        self._kind = "cpu" if device.dlpack_type == dlpack.CPU else "cuda"
        self._device_id = 0 if self._kind == "cpu" else device.id
        self._binding: Any = session.io_binding()
        self._made: list[_Made] = []
        self._kept: list[object] = []

    def bind_input(self, name: str, datatype: DataType, array: Array | DeviceArray) -> None:
        """Feed an array where it is; it is kept as long as the binding."""
        self._kept.append(array)
        if isinstance(array, DeviceArray):
            self._binding.bind_input(name, *self._at(datatype, array))
        else:
            self._binding.bind_ortvalue_input(name, to_value(array))

    def bind_output(self, name: str, datatype: DataType, *, on_device: bool) -> None:
        """Have an output allocated by ONNX Runtime, on the device or in host memory."""
        self._made.append(_Made(datatype, on_device))
        if on_device:
            self._binding.bind_output(name, self._kind, self._device_id)
        else:
            self._binding.bind_output(name, "cpu", 0)

    def bind_output_at(self, name: str, datatype: DataType, array: DeviceArray) -> None:
        """Have an output written to this array."""
        self._kept.append(array)
        self._binding.bind_output(name, *self._at(datatype, array))

    def run(self, options: RunOptions) -> None:
        """Run. Raises Internal with ONNX Runtime's text."""
        self._session.run_bound(self._binding, options)

    def outputs(self) -> list[Array | DeviceArray | None]:
        """The outputs that ONNX Runtime made, in the order in which they were bound, without a copy; those on the device keep the
        binding. None: the model made none."""
        values = self._binding.get_outputs()
        return [self._output(made, value) for made, value in zip(self._made, values, strict=True)]

    def _output(self, made: _Made, value: Any) -> Array | DeviceArray | None:
        if not (made.on_device and value.has_value()):
            return to_array(value)
        dtype, shape = made.datatype.numpy, tuple(value.shape())
        memory = DeviceMemory(self._device, value.data_ptr(), math.prod(shape) * dtype.itemsize, owner=(self, value))
        return DeviceArray(memory, shape, dtype)

    def _at(self, datatype: DataType, array: DeviceArray) -> tuple[str, int, Any, tuple[int, ...], int]:
        element = BFLOAT16 if datatype is DataType.BF16 else datatype.numpy.type
        return self._kind, self._device_id, element, array.shape, array.address
