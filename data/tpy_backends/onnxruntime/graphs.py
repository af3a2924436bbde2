"""CUDA graphs: the runs of one shape, captured once and replayed at fixed addresses (`enable_cuda_graph`)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tpy.devices import Array, DeviceArray, Devices, Stream
from tpy.limits import CUDA_GRAPHS_MAX
from tpy.messages import DataType
from tpy_backends.onnxruntime.binding import Binding
from tpy_backends.onnxruntime.session import OnnxSession, RunOptions

_GRAPH = "gpu_graph_id"
NO_CAPTURE: Mapping[str, str] = {_GRAPH: "-1"}
"""Run entries for runs without a graph: otherwise a captured graph would be replayed, at the addresses of another run."""

_Key = tuple[tuple[str, ...], tuple[tuple[str, tuple[int, ...]], ...]]


class _Graph(NamedTuple):
    """A captured run, and the arrays at its addresses."""

    binding: Binding
    inputs: Mapping[str, DeviceArray]
    outputs: Sequence[DeviceArray]
    options: RunOptions


class Graphs:
    """The graphs of one instance, by the outputs that are wanted and the shapes of the inputs; of the first CUDA_GRAPHS_MAX.

    The shapes of the outputs are known after a run without a graph. ONNX Runtime captures by itself, once it has run a graph
    often enough. Used in the instance's thread.
    """

    def __init__(self, session: OnnxSession, devices: Devices, device_id: int, run_entries: Mapping[str, str]) -> None:
        self._session = session
        self._devices = devices
        self._device_id = device_id
        self._device = devices.get(device_id)
        self._entries = run_entries
        self._numbers = itertools.count(1)
        self._graphs: dict[_Key, _Graph] = {}

    def run(self, names: Sequence[str], inputs: Mapping[str, DeviceArray], stream: Stream) -> list[DeviceArray] | None:
        """Run by the graph of these shapes; copies to its inputs and of its outputs are queued. None: there is no graph (yet)."""
        graph = self._graphs.get(_key(names, inputs))
        if graph is None:
            return None
        for name, array in inputs.items():
            self._device.copy_within(graph.inputs[name].address, array.address, array.nbytes, stream)
        graph.binding.run(graph.options)
        copies = []
        for output in graph.outputs:
            copy = self._like(output)
            self._device.copy_within(copy.address, output.address, output.nbytes, stream)
            copies.append(copy)
        return copies

    def add(
        self,
        names: Sequence[str],
        inputs: Mapping[str, DeviceArray],
        outputs: Sequence[Array | DeviceArray | None],
        types: Mapping[str, DataType],
    ) -> None:
        """A run with these inputs had these outputs: the next one of these shapes is a graph. `types` has those of all."""
        arrays = [output for output in outputs if isinstance(output, DeviceArray)]
        if len(arrays) < len(outputs) or len(self._graphs) >= CUDA_GRAPHS_MAX:
            return
        binding = Binding(self._session, self._device)
        fixed = {name: self._like(array) for name, array in inputs.items()}
        for name, array in fixed.items():
            binding.bind_input(name, types[name], array)
        targets = [self._like(array) for array in arrays]
        for name, target in zip(names, targets, strict=True):
            binding.bind_output_at(name, types[name], target)
        options = RunOptions({**self._entries, _GRAPH: str(next(self._numbers))})
        self._graphs[_key(names, inputs)] = _Graph(binding, fixed, targets, options)

    def _like(self, array: DeviceArray) -> DeviceArray:
        return DeviceArray(self._devices.allocate(self._device_id, array.nbytes), array.shape, array.dtype)


def _key(names: Sequence[str], inputs: Mapping[str, DeviceArray]) -> _Key:
    return tuple(names), tuple((name, array.shape) for name, array in sorted(inputs.items()))
