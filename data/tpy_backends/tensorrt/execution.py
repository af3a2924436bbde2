"""The execution contexts of one instance, and one run of one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpy.devices import Bytes, Device, Devices, Graph, Stream
from tpy.errors import Internal, InvalidArgument
from tpy_backends.signature import VARIABLE, shape_text
from tpy_backends.tensorrt.buffers import Gathered, GrowingBuffer, HostValues, InputBuffers, OutputBuffer
from tpy_backends.tensorrt.graph_specs import GraphShapes, GraphSpec, closest, shapes_of
from tpy_backends.tensorrt.library import Library, Log
from tpy_backends.tensorrt.profiles import Shapes, choose, refusal
from tpy_backends.tensorrt.signature import EngineSignature, OptimizationProfile, Shape


class SharedEngine(NamedTuple):
    """The parts of a loaded engine that its instances on a device share."""

    library: Library
    logger: Any
    engine: Any
    signature: EngineSignature


class ContextDemand(NamedTuple):
    """The requirements of an instance on its contexts. `batch_max` (0: no batching) bounds the first dimension of inputs but
    those in
    `unbounded`, which are flat or made for a whole batch. `strategy` is the name of an ExecutionContextAllocationStrategy."""

    model_name: str
    profiles: Sequence[int]
    batch_max: int = 0
    unbounded: frozenset[str] = frozenset()
    strategy: str = "STATIC"
    graphs: Sequence[GraphSpec] = ()


class Produced(NamedTuple):
    """An output of a run, on the device at `address`; or the `values` of a shape tensor."""

    address: int
    shape: Shape
    values: np.ndarray[Any, Any] | None = None


class _Context(NamedTuple):
    """A context, which keeps to one optimization profile, and the graphs that were captured with it."""

    context: Any
    profile: OptimizationProfile
    shapes: list[GraphShapes]
    graphs: list[Graph]


class EngineExecution:
    """Used in the instance's thread only, with its device as the current one."""

    def __init__(
        self, plan: SharedEngine, devices: Devices, device: Device, stream: Stream, demand: ContextDemand, log: Log
    ) -> None:
        """Makes the contexts, allocates memory, captures graphs. Raises TpyError."""
        self._plan = plan
        self._device = device
        self._stream = stream
        self._demand = demand
        self._log = log
        signature = plan.signature
        self._shape_inputs = [name for name, info in signature.inputs.items() if info.is_shape_tensor]
        self._inputs = [name for name, info in signature.inputs.items() if not info.is_shape_tensor]
        self._variable = {name for name in signature.inputs if VARIABLE in signature.inputs[name].shape}
        self._profiles = tuple(signature.profiles[index] for index in demand.profiles)
        largest = {profile.index: self._largest(profile) for profile in self._profiles}
        sizes = {
            name: max(math.prod(shapes[name]) for shapes in largest.values()) * signature.inputs[name].datatype.numpy.itemsize
            for name in self._inputs
        }
        self._buffers = InputBuffers(devices, device, sizes)
        self._values = self._host_values()
        self._contexts = {profile.index: self._make_context(profile, largest[profile.index]) for profile in self._profiles}
        self._outputs: dict[str, OutputBuffer | GrowingBuffer] = {}
        self._allocators: list[Any] = []
        for name, info in signature.outputs.items():
            if not info.is_shape_tensor:
                self._outputs[name] = self._make_output(name)
        for each in self._contexts.values():
            self._capture(each)

    @property
    def stream(self) -> Stream:
        return self._stream

    def run(self, inputs: Mapping[str, Gathered], values: Shapes) -> tuple[dict[str, Produced], list[Bytes]]:
        """Queue the copies of the inputs and one execution. Returns the outputs, which are there when the stream is synchronized,
        and memory that has to stay until then.

        Raises InvalidArgument for a batch that no profile takes, Internal when TensorRT refuses.
        """
        shapes = {name: given.shape for name, given in inputs.items()}
        profile = choose(self._profiles, shapes, values)
        if profile is None:
            raise refusal(self._demand.model_name, self._profiles, shapes, values)
        used = self._contexts[profile.index]
        staged: list[Bytes] = []
        for name, given in inputs.items():
            staged += self._buffers.fill(name, given, self._plan.signature.inputs[name].datatype.numpy, self._stream)
        chosen = closest(used.shapes, shapes) if used.graphs else None
        if chosen is not None:
            self._set_shapes(used, used.shapes[chosen].largest)
            used.graphs[chosen].launch(self._stream)
        else:
            self._values.set(values)
            self._set_shapes(used, shapes)
            self._enqueue(used)
        return self._produced(used), staged

    def settle(self) -> None:
        """The stream was synchronized."""
        for output in self._outputs.values():
            if isinstance(output, GrowingBuffer):
                output.settle()

    def close(self) -> None:
        """Let go of contexts, graphs and memory."""
        for used in self._contexts.values():
            used.graphs.clear()
        self._contexts.clear()
        self._outputs.clear()
        self._allocators.clear()

    def _largest(self, profile: OptimizationProfile) -> dict[str, Shape]:
        """The largest shapes that inputs can have. Raises InvalidArgument for a max_batch_size beyond the profile."""
        largest = {}
        for name in self._inputs:
            shape = profile.shapes[name].largest
            if self._demand.batch_max and name not in self._demand.unbounded:
                shape = (min(shape[0], self._demand.batch_max), *shape[1:])
            largest[name] = shape
        return largest

    def _host_values(self) -> HostValues:
        signature = self._plan.signature
        infos = {name: info for name, info in (*signature.inputs.items(), *signature.outputs.items()) if info.is_shape_tensor}
        return HostValues(
            {name: math.prod(info.shape) for name, info in infos.items()},
            {name: info.datatype.numpy for name, info in infos.items()},
        )

    def _make_context(self, profile: OptimizationProfile, largest: Shapes) -> _Context:
        """A context with all shapes and values at their largest, so that it tells how large outputs can be."""
        library, engine, name = self._plan.library, self._plan.engine, self._demand.model_name
        strategy = getattr(library.ExecutionContextAllocationStrategy, self._demand.strategy)
        context = engine.create_execution_context(strategy)
        if context is None:
            raise Internal(f"unable to create TensorRT context: {self._last_error()}")
        if profile.index and not context.set_optimization_profile_async(profile.index, self._stream.handle):
            raise InvalidArgument(
                f"Can not set the specified optimization profile {profile.index}[{profile.index}] for {name}: "
                f"{self._last_error()}"
            )
        self._stream.synchronize()
        used = _Context(context, profile, [], [])
        for tensor in self._inputs:
            self._set_address(used, tensor, self._buffers.address(tensor))
        for tensor, info in (*self._plan.signature.inputs.items(), *self._plan.signature.outputs.items()):
            if info.is_shape_tensor:
                self._set_address(used, tensor, self._values.address(tensor))
        self._values.set({tensor: extent.largest for tensor, extent in profile.values.items()})
        self._set_shapes(used, {**largest, **{each: profile.shapes[each].largest for each in self._shape_inputs}})
        self._infer_shapes(used)
        return used

    def _make_output(self, name: str) -> OutputBuffer | GrowingBuffer:
        """One buffer for all contexts, because no two run at a time."""
        contexts = [used.context for used in self._contexts.values()]
        if any(VARIABLE in context.get_tensor_shape(name) for context in contexts):
            growing = GrowingBuffer(self._device)
            allocator = growing.allocator(self._plan.library)
            self._allocators.append(allocator)
            for context in contexts:
                if not context.set_output_allocator(name, allocator):
                    raise Internal(
                        f"unable to set the allocator of output '{name}' for {self._demand.model_name}: {self._last_error()}"
                    )
            return growing
        sizes = [context.get_max_output_size(name) for context in contexts]
        if min(sizes) < 0:
            raise Internal(f"unable to allocate memory for output '{name}' for {self._demand.model_name}")
        output = OutputBuffer(self._device.allocate(max(1, *sizes)))
        for used in self._contexts.values():
            self._set_address(used, name, output.memory.address)
        return output

    def _capture(self, used: _Context) -> None:
        """The graphs that the profile takes. One that cannot be captured is left out, with a warning: batches run without it."""
        if not self._demand.graphs:
            return
        obstacle = self._obstacle()
        if obstacle:
            self._log("warning", f"{obstacle}, CUDA graph is not captured for {self._demand.model_name}")
            return
        for spec in self._demand.graphs:
            shapes = shapes_of(spec, used.profile, self._demand.unbounded)
            if shapes is None:
                continue
            try:
                self._set_shapes(used, shapes.largest)
                self._enqueue(used)  # what TensorRT sets up in the first run must not be part of a graph
                self._stream.synchronize()
                graph = self._device.capture(self._stream, lambda: self._enqueue(used))
            except Internal as error:
                self._log("warning", f"unable to record CUDA graph for {self._demand.model_name}: {error.message}")
                continue
            used.shapes.append(shapes)
            used.graphs.append(graph)
            self._log(
                "verbose",
                f"captured CUDA graph for {self._demand.model_name}, profile {used.profile.index}, batch size {spec.batch_size}",
            )

    def _obstacle(self) -> str:
        """Returns the thing in the engine that no graph can have, "" for none."""
        if self._shape_inputs or any(info.is_shape_tensor for info in self._plan.signature.outputs.values()):
            return "Detected shape tensor"
        if any(isinstance(output, GrowingBuffer) for output in self._outputs.values()):
            return "Detected output of data-dependent shape"
        return ""

    def _set_address(self, used: _Context, name: str, address: int) -> None:
        if not used.context.set_tensor_address(name, address):
            raise Internal(f"'{name}' does not map to an input or output tensor: {self._last_error()}")

    def _set_shapes(self, used: _Context, shapes: Shapes) -> None:
        for name, shape in shapes.items():
            if name in self._variable and not used.context.set_input_shape(name, shape):
                raise Internal(
                    f"trt failed to set binding dimension to {shape_text(shape)} for input '{name}' for "
                    f"{self._demand.model_name}: "
                    f"{self._last_error()}"
                )

    def _infer_shapes(self, used: _Context) -> None:
        try:
            missing = used.context.infer_shapes()
        except RuntimeError as error:
            raise Internal(
                f"TensorRT cannot infer shapes for {self._demand.model_name}: {error}; {self._last_error()}"
            ) from error
        if missing:
            raise Internal(
                "failed to specify the dimensions of all input tensors or values of all input shape tensors: "
                + ", ".join(missing)
            )

    def _enqueue(self, used: _Context) -> None:
        self._infer_shapes(used)
        if not used.context.execute_async_v3(self._stream.handle):
            failures = [
                output.failure for output in self._outputs.values() if isinstance(output, GrowingBuffer) and output.failure
            ]
            for output in self._outputs.values():
                if isinstance(output, GrowingBuffer):
                    output.failure = None
            raise Internal(
                f"unable to enqueue for inference {self._demand.model_name}: {failures[0] if failures else self._last_error()}"
            )

    def _produced(self, used: _Context) -> dict[str, Produced]:
        made = {}
        for name, info in self._plan.signature.outputs.items():
            output = self._outputs.get(name)
            if isinstance(output, GrowingBuffer):
                shape, address = output.shape, output.memory.address if output.memory is not None else 0
            else:
                shape = tuple(int(size) for size in used.context.get_tensor_shape(name))
                address = output.memory.address if output is not None else 0
            values = self._values.get(name, math.prod(shape)) if info.is_shape_tensor else None
            made[name] = Produced(address, shape, values)
        return made

    def _last_error(self) -> str:
        errors = self._plan.logger.take_errors()
        return errors[0] if errors else "TensorRT gives no reason"
