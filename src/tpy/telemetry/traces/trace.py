"""Trace: what is noted of one traced request, its steps and its calls, in the form of Triton's trace files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tpy.limits import TRACE_TENSOR_BYTES_MAX, TRACES_HELD_BYTES_MAX
from tpy.messages import DataType, Moment, RequestRecord, Tensor, TracedPart, held_bytes
from tpy.telemetry.traces.core.setting import TENSORS, TIMESTAMPS
from tpy.telemetry.traces.core.settings import ActiveSetting

_FRONTENDS = {
    "http": ("HTTP_RECV", "HTTP_SEND"),
    "generate": ("HTTP_RECV", "HTTP_SEND"),
    "grpc": ("GRPC_WAITREAD", "GRPC_SEND"),
    "grpc-stream": ("GRPC_WAITREAD", "GRPC_SEND"),
}
"""Triton's names for the arrival of a request and the departure of its answer."""


class TensorNote(msgspec.Struct, frozen=True):
    """A tensor as it was: `data` is a copy, unless nothing changes it."""

    activity: str
    name: str
    datatype: DataType
    data: np.ndarray[Any, Any]


class TensorMemory:
    """The bytes of tensors that traces have; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.held = 0

    def take(self, size: int) -> bool:
        """Hold `size` bytes more; False: there is no room for them."""
        with self._lock:
            if self.held + size > TRACES_HELD_BYTES_MAX:
                return False
            self.held += size
            return True

    def give(self, size: int) -> None:
        """Hold `size` bytes less."""
        with self._lock:
            self.held -= size


class Trace:
    """The trace of a request, or of a step or call that belongs to `root`. A root is complete when all of it has ended."""

    __slots__ = (
        "active",
        "children",
        "has_steps",
        "id",
        "memory",
        "noted_bytes",
        "open",
        "parent",
        "record",
        "root",
        "span",
        "tensors",
    )

    root: Trace

    def __init__(self, active: ActiveSetting, trace_id: int, memory: TensorMemory, parent: Trace | None = None) -> None:
        self.memory = memory
        self.noted_bytes = 0
        """Of a root, with all of its parts."""
        self.active = active
        self.id = trace_id
        self.root = self if parent is None else parent.root
        self.parent = parent
        self.span: Any = None
        """The span of mode opentelemetry."""
        self.record: RequestRecord | None = None
        self.tensors: list[TensorNote] = []
        self.children: list[Trace] = []
        self.has_steps = False
        self.open = 1
        if parent is not None:
            self.root.children.append(self)
            self.root.open += 1

    @property
    def parent_id(self) -> int:
        """The number of the trace that it is a part of, 0 for none."""
        return 0 if self.parent is None else self.parent.id

    def note_tensors(self, activity: str, tensors: tuple[Tensor, ...]) -> None:
        """Note tensors, where the level asks for it: large ones, and tensors outside host memory, are left out."""
        if TENSORS in self.active.setting.levels:
            for tensor in tensors:
                array: object = tensor.array
                size = held_bytes((tensor,), TRACE_TENSOR_BYTES_MAX + 1)
                if isinstance(array, np.ndarray) and size <= TRACE_TENSOR_BYTES_MAX and self.memory.take(size):
                    self.root.noted_bytes += size
                    self.tensors.append(TensorNote(activity, tensor.name, tensor.datatype, array.copy()))

    def release(self) -> None:
        """Let go of the tensors of a root and its parts: they are written, or never will be."""
        self.memory.give(self.noted_bytes)
        self.noted_bytes = 0
        for trace in (self, *self.children):
            trace.tensors.clear()

    def rows(self) -> Iterator[dict[str, object]]:
        """All that goes into the file, of this trace and of its children."""
        yield from self._own_rows()
        for child in self.children:
            yield from child._own_rows()

    def parts(self, count_max: int) -> tuple[TracedPart, ...]:
        """This trace and the first of its children, without tensors."""
        return tuple(part for trace in (self, *self.children[: count_max - 1]) if (part := trace._part()) is not None)

    def _part(self) -> TracedPart | None:
        record = self.record
        if record is None:
            return None
        return TracedPart(
            id=self.id,
            parent_id=self.parent_id,
            model_name=record.model,
            model_version=record.version or -1,
            request_id=record.id,
            protocol=record.protocol,
            status=record.status,
            error=record.error,
            timestamps=tuple(Moment(name, at_ns) for name, at_ns in self.timestamps()),
        )

    def _own_rows(self) -> Iterator[dict[str, object]]:
        record = self.record
        if record is None:
            return
        head: dict[str, object] = {"id": self.id, "model_name": record.model, "model_version": record.version or -1}
        if record.id:
            head["request_id"] = record.id
        if self.parent_id:
            head["parent_id"] = self.parent_id
        yield head
        if TIMESTAMPS in self.active.setting.levels:
            for name, at_ns in self.timestamps():
                yield {"id": self.id, "timestamps": [{"name": name, "ns": at_ns}]}
        for note in self.tensors:
            yield {"id": self.id, "activity": note.activity, "tensor": _tensor(note)}

    def timestamps(self) -> Iterator[tuple[str, int]]:
        """The moments of the request that are known, with Triton's names, in their order."""
        record = self.record
        if record is None:
            return
        receive, send = _FRONTENDS.get(record.protocol, ("", ""))
        if receive:
            yield f"{receive}_START", record.begun_ns or record.received_ns
            yield f"{receive}_END", record.received_ns
        yield "REQUEST_START", record.submitted_ns
        yield "QUEUE_START", record.submitted_ns
        computed_ns = 0
        if record.started_ns is not None and not self.has_steps:
            ready_ns = record.started_ns + record.input_ns
            done_ns = ready_ns + record.infer_ns
            computed_ns = done_ns + record.output_ns
            yield "COMPUTE_START", record.started_ns
            yield "COMPUTE_INPUT_END", ready_ns
            yield "COMPUTE_OUTPUT_START", done_ns
            yield "COMPUTE_END", computed_ns
        if record.responses and not self.parent_id:
            yield "INFER_RESPONSE_COMPLETE", record.ended_ns
        yield "REQUEST_END", max(record.ended_ns, computed_ns)
        if send:
            yield f"{send}_START", record.ended_ns
            yield f"{send}_END", record.finished_ns


def _tensor(note: TensorNote) -> dict[str, str]:
    flat = note.data.ravel()
    if note.datatype is DataType.BYTES:
        texts = ['"' + bytes(element).decode(errors="backslashreplace") + '"' for element in flat]
    elif note.datatype is DataType.BOOL:
        texts = [str(int(element)) for element in flat]
    elif flat.dtype.kind in "iu":
        texts = [str(element) for element in flat.tolist()]
    else:
        texts = [f"{float(element):g}" for element in flat]
    shape = ",".join(map(str, note.data.shape))
    return {"name": note.name, "data": ",".join(texts), "shape": shape, "dtype": note.datatype.value}
