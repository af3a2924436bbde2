"""A pipeline of DALI, ready to run in one thread."""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref
from typing import Any, NamedTuple

import numpy as np

from tpy.errors import Internal
from tpy.messages import DataType
from tpy_backends.dali import library
from tpy_backends.dali.description import PipelineDescription, PipelineTensor
from tpy_backends.dali.library import DaliTensor, IODescription, PipelineParameters, call

Array = np.ndarray[Any, Any]

_LENT_BYTES_MIN = 16 * 1024
"""Outputs from this size are not copied; to lend takes longer than to copy less."""


class Samples(NamedTuple):
    """A batch of samples, which may differ in shape: `shapes` has a row for each, `flat` the elements of all in their order."""

    datatype: DataType
    shapes: Array
    flat: Array


class Pipeline:
    """`run` may have to be called several times for what was fed once: inputs that are videos give a part of theirs each time.

    After an error the pipeline is made anew before it runs again, as DALI asks for."""

    def __init__(
        self, serialized: bytes, *, max_batch_size: int | None = None, threads: int | None = None, device_id: int | None = None
    ) -> None:
        """None leaves a parameter to the pipeline; without a device it runs on the CPU. Raises Internal."""
        parameters = PipelineParameters()
        parameters.override("exec_type", library.DYNAMIC_EXECUTOR)
        parameters.override("prefetch_queue_depths", (1, 1))
        for name, value in (("max_batch_size", max_batch_size), ("num_threads", threads), ("device_id", device_id)):
            if value is not None:
                parameters.override(name, value)
        self._parameters = parameters
        self.max_batch_size = max_batch_size or library.batch_size_of(serialized)
        self._serialized = serialized if device_id is not None else library.for_cpu(serialized)
        self._handle: ctypes.c_void_p | None = None
        self._feeds = itertools.count()
        self._feed_id = b""
        self._fed: Mapping[str, Sequence[Array]] = {}
        self.consumed = True
        """Nothing is left of what was fed."""
        self._open()
        self._inputs = {each.name: each for each in self._described("Input", "daliPipelineGetInputDescByIdx")}
        self._outputs = self._described("Output", "daliPipelineGetOutputDesc")

    def describe(self) -> PipelineDescription:
        """Its inputs and outputs. Raises Internal for a type that the protocol has not."""
        return PipelineDescription(
            inputs=tuple(_tensor(each) for each in self._inputs.values()),
            outputs=tuple(_tensor(each) for each in self._outputs),
            max_batch_size=self.max_batch_size,
        )

    def feed(self, inputs: Mapping[str, tuple[DataType, Sequence[Array]]]) -> None:
        """The samples of each input. Their memory is used until all of them is consumed. Raises Internal."""
        handle = self._open()
        self._feed_id = b"%d" % next(self._feeds)
        self._fed = {name: samples for name, (_, samples) in inputs.items()}
        self.consumed = False
        try:
            for name, (datatype, samples) in inputs.items():
                description = self._inputs[name.encode()]
                with _TensorList() as tensors:
                    tensors.attach(datatype, samples, description.layout or library.NO_LAYOUT)
                    flags = library.WAIT if description.device else library.NO_COPY
                    call("daliPipelineFeedInput", handle, description.name, tensors.handle, self._feed_id, flags, None)
        except Internal:
            self.close()
            raise

    def run(self) -> list[Samples]:
        """The next outputs, on the host. Raises Internal."""
        handle = self._open()
        outputs = ctypes.c_void_p()
        try:
            call("daliPipelineRun", handle)
            call("daliPipelinePopOutputs", handle, byref(outputs))
            made = [_samples(outputs, index, self._fed) for index in range(len(self._outputs))]
            self.consumed = self._is_consumed(outputs)
        except Internal:
            self.close()
            raise
        finally:
            if outputs:
                call("daliPipelineOutputsDestroy", outputs)
        if self.consumed:
            self._fed = {}
        return made

    def close(self) -> None:
        """Let go of it. It is made again when it is used again."""
        handle, self._handle = self._handle, None
        self.consumed, self._fed = True, {}
        if handle is not None:
            call("daliPipelineDestroy", handle)

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            handle = ctypes.c_void_p()
            call("daliPipelineDeserialize", byref(handle), self._serialized, len(self._serialized), byref(self._parameters))
            try:
                call("daliPipelineBuild", handle)
            except Internal:
                call("daliPipelineDestroy", handle)
                raise
            self._handle = handle
        return self._handle

    def _described(self, kind: str, function: str) -> list[IODescription]:
        count = ctypes.c_int()
        call(f"daliPipelineGet{kind}Count", self._handle, byref(count))
        descriptions = []
        for index in range(count.value):
            description = IODescription()
            call(function, self._handle, byref(description), index)
            # Texts belong to the pipeline, which may be closed.
            description.name, description.layout = description.name, description.layout
            descriptions.append(description)
        return descriptions

    def _is_consumed(self, outputs: ctypes.c_void_p) -> bool:
        """As in Triton: an input is empty, or its next data are not what was fed."""
        names = [name for name in self._inputs if name.decode() in self._fed]
        if any(library.trace_of(outputs, name, b"depleted") != b"false" for name in names):
            return True
        return any(library.trace_of(outputs, name, b"next_output_data_id") not in (None, self._feed_id) for name in names)


class _TensorList:
    """A batch of input samples over the memory of arrays."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()

    def __enter__(self) -> _TensorList:
        call("daliTensorListCreate", byref(self.handle), library.ON_HOST)
        return self

    def __exit__(self, *_: object) -> None:
        call("daliTensorListDecRef", self.handle, None)

    def attach(self, datatype: DataType, samples: Sequence[Array], layout: bytes) -> None:
        """All have as many dimensions as the first. Raises Internal."""
        number, ndim = library.NUMBER_OF[datatype], samples[0].ndim
        descriptions = (DaliTensor * len(samples))()
        shape_type = ctypes.c_int64 * ndim
        shapes: dict[tuple[int, ...], Any] = {}
        for description, sample in zip(descriptions, samples, strict=True):
            shape = shapes.get(sample.shape)
            if shape is None:
                shape = shapes[sample.shape] = ctypes.cast(shape_type(*sample.shape), POINTER(ctypes.c_int64))
            description.ndim, description.shape, description.dtype = ndim, shape, number
            description.layout, description.data = layout, sample.__array_interface__["data"][0]
        call("daliTensorListAttachSamples", self.handle, len(samples), ndim, number, layout, descriptions, None)


class _Lent:
    """Lends numpy the memory of an output on the host, which DALI uses for no other run meanwhile. `fed` are the inputs of the
    run: where the pipeline passes one of them on, the memory is theirs."""

    def __init__(self, tensor: ctypes.c_void_p, datatype: DataType, address: int, count: int, fed: object) -> None:
        """The tensor is given back with this object, in whatever thread that is."""
        self._fed = fed
        self.__array_interface__ = {
            "version": 3,
            "typestr": datatype.numpy.str,
            "shape": (count,),
            "data": (address, True),
        }
        weakref.finalize(self, call, "daliTensorDecRef", tensor, None).atexit = False


def _samples(outputs: ctypes.c_void_p, index: int, fed: object) -> Samples:
    tensors = ctypes.c_void_p()
    call("daliPipelineOutputsGet", outputs, byref(tensors), index)
    try:
        count, ndim, number, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        shapes = POINTER(ctypes.c_int64)()
        call("daliTensorListGetShape", tensors, byref(count), byref(ndim), byref(shapes))
        call("daliTensorListGetDType", tensors, byref(number))
        call("daliTensorListGetByteSize", tensors, byref(size))
        datatype = library.DATATYPE_OF.get(number.value)
        if datatype is None:
            raise Internal(f"DALI error: output {index} is of a type (number {number.value}) that the protocol has not")
        extents = count.value * ndim.value
        table = np.ctypeslib.as_array(shapes, (extents,)).copy() if extents else np.empty(0, np.int64)
        flat = _flat(tensors, datatype, size.value, fed)
        return Samples(datatype, table.reshape(count.value, ndim.value), flat)
    finally:
        call("daliTensorListDecRef", tensors, None)


def _flat(tensors: ctypes.c_void_p, datatype: DataType, size: int, fed: object) -> Array:
    """The elements of all samples: of a batch of one shape on the host where they are, else a copy."""
    place, whole, description = library.Placement(), ctypes.c_void_p(), library.DaliTensor()
    call("daliTensorListGetBufferPlacement", tensors, byref(place))
    on_host = place.device_type == library.ON_HOST.device_type
    if on_host and size >= _LENT_BYTES_MIN and library.succeeds("daliTensorListViewAsTensor", tensors, byref(whole)):
        call("daliTensorGetDesc", whole, byref(description))
        return np.asarray(_Lent(whole, datatype, description.data, size // datatype.itemsize, fed))
    flat = np.empty(size // datatype.itemsize, datatype.numpy)
    if size:
        call("daliTensorListCopyOut", tensors, flat.ctypes.data, library.ON_HOST, None, library.COPY_AND_WAIT)
    return flat


def _tensor(description: IODescription) -> PipelineTensor:
    return PipelineTensor(
        name=description.name.decode(),
        datatype=library.DATATYPE_OF[description.dtype] if description.present & 1 else None,
        dimensions=description.ndim if description.present & 2 else None,
    )
