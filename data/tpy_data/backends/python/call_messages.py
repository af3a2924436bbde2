"""What a worker's model and the server say to each other of calls (worker/call_line.py)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tpy.errors import TpyError
from tpy.messages import DataType, InferenceResponse
from tpy_data.backends.python import translation
from tpy_data.backends.python.worker.core.batch import Descriptor, Layout
from tpy_data.backends.python.worker.core.frames import Frame, Kind
from tpy_data.backends.python.worker.datatypes import BYTES

AT_ONCE_BYTES_MAX = 16 * 1024
"""Tensors of an answer that the Trio thread says itself: some microseconds to copy."""

_AT_ONCE_ELEMENTS_MAX = 64
"""Of its BYTES tensors, which are written one by one."""

_HEARD_HEADER_BYTES_MAX = 16 * 1024
"""Of a call that the Trio thread hears itself: read as JSON."""

_HEARD_BYTES_MAX = 64 * 1024
"""Of its tensors, which are not copied."""

_HEARD_TEXT_BYTES_MAX = 4 * 1024
"""Of its BYTES tensors, whose elements are read one by one."""

Segment = tuple[int, int, bool]
AnswerTold = tuple[int, str, str, Sequence[Descriptor]]


class Requested(msgspec.Struct, frozen=True, array_like=True):
    model: str
    version: int
    id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: str
    outputs: tuple[str, ...]
    inputs: tuple[Descriptor, ...]


class Call(msgspec.Struct, frozen=True):
    n: int
    s: Segment | None
    r: tuple[int, ...]
    d: tuple[int, ...]
    b: int
    """The number of the batch that waits for it, 0 for none."""
    m: bool
    q: Requested


class RepositoryCall(msgspec.Struct, frozen=True):
    n: int
    s: Segment | None
    r: tuple[int, ...]
    d: tuple[int, ...]
    o: str
    m: str
    v: int | None = None
    u: bool = False
    c: str = ""
    f: tuple[Descriptor, ...] = ()


class Note(msgspec.Struct, frozen=True):
    t: tuple[tuple[int, int], ...]
    c: tuple[int, ...]
    r: tuple[int, ...]


decode_call = msgspec.json.Decoder(Call).decode
decode_repository = msgspec.json.Decoder(RepositoryCall).decode
decode_note = msgspec.json.Decoder(Note).decode
encode = msgspec.json.Encoder().encode


def told_answer(said: InferenceResponse | TpyError | bool, layout: Layout) -> tuple[AnswerTold, bool]:
    """What is said, its tensors laid out, and whether it is the last."""
    if isinstance(said, bool):
        return (-1, "", "true" if said else "false", ()), True
    if isinstance(said, TpyError):
        return told_error(said), True
    if said.error is not None:
        return told_error(said.error), said.final
    outputs = [layout.add(each.name, each.datatype.number, translation.storage(each)) for each in said.outputs]
    return (-1, "", translation.parameters_text(said.parameters), outputs), said.final


def told_error(error: TpyError) -> AnswerTold:
    return translation.code_of(error), error.message, "", ()


def is_small(said: InferenceResponse | TpyError | bool) -> bool:
    """Whether it takes next to no time to write down."""
    if not isinstance(said, InferenceResponse):
        return True
    size = 0
    for tensor in said.outputs:
        array = tensor.array
        if tensor.datatype is not DataType.BYTES:
            size += array.nbytes
        elif array.size > _AT_ONCE_ELEMENTS_MAX:
            return False
        else:
            size += sum([len(element) for element in array.reshape(-1)])
    return size <= AT_ONCE_BYTES_MAX


def small_call(frame: Frame) -> Call | None:
    """What the frame says if that is a call which takes next to no time to make, and concerns no segment; else None. Raises
    msgspec.MsgspecError."""
    if frame.kind is not Kind.CALL or len(frame.header) > _HEARD_HEADER_BYTES_MAX or len(frame.data) > _HEARD_BYTES_MAX:
        return None
    call = decode_call(frame.header)
    if call.s is not None or call.r or call.d:
        return None
    return call if sum([each[5] for each in call.q.inputs if each[1] == BYTES]) <= _HEARD_TEXT_BYTES_MAX else None
