"""The messages, one per kind of frame: msgpack arrays, of which every field is checked when a message is read.

frontend process -> engine      SEEN; READY or FAILED once; FINISHED; HOLD, LET_GO; SUBMIT, CANCEL, TAKEN; CALL, GIVE_UP; RELEASE;
                                FORGET_REGION; REFUSED
engine -> frontend process      REPLICA; CONFIGURE once, when the first REPLICA was seen, and then RESPONSE; RESULT; RELEASE; STOP
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from tpy.errors import ERROR_OF_CODE, ErrorCode, TpyError
from tpy.messages import (
    DataType,
    LogSettings,
    ModelDescription,
    ParameterValue,
)
from tpy.remote.core.framing import ProtocolError, frame
from tpy.remote.core.questions import Question, RegionOffset
from tpy.remote.core.replica import ReplicaUpdate


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """A TpyError."""

    code: ErrorCode
    message: str
    wait_s: int | None = None

    @staticmethod
    def of(error: TpyError) -> Failure:
        """The failure for `error`."""
        return Failure(error.code, error.message, error.wait_s)

    def error(self) -> TpyError:
        """The error again, as a new object: exceptions keep who raised them."""
        error = ERROR_OF_CODE[self.code](self.message)
        error.wait_s = self.wait_s
        return error


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Bytes in the sender's shared memory."""

    offset: int
    size: int


class WireTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: its bytes in C order, in `inline` or `block`; of BYTES the elements, in `elements` or, as msgpack, in `block`.
    One in a `region` stays there."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    inline: bytes | None = None
    elements: list[bytes] | None = None
    block: Block | None = None
    region: RegionOffset | None = None


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """A request is being decoded for this copy of a version: it is to stay until a LetGo of it, also if the next update is
    without it."""

    copy: int


class LetGo(msgspec.Struct, frozen=True, array_like=True):
    """The end of one Hold of this copy."""

    copy: int


class ForgetRegion(msgspec.Struct, frozen=True, array_like=True):
    """Nobody there refers any more to this region in a GPU's memory, which is not registered any more."""

    number: int


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Whom a request that is observed came from: what a RequestRecord says of that."""

    protocol: str
    peer: str
    headers: Mapping[str, str]
    begun_ns: int
    received_ns: int
    request_bytes: int


class Submit(msgspec.Struct, frozen=True, array_like=True):
    """A request to this copy of a version. `number` grows from request to request; `origin` while requests are observed. The
    rest is InferenceRequest's."""

    number: int
    copy: int
    model_name: str
    model_version: int | None
    id: str
    inputs: tuple[WireTensor, ...]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, ParameterValue]
    sequence: tuple[int | str, bool, bool] | None
    priority: int
    timeout_us: int
    deadline_ns: int | None
    received_ns: int
    origin: Origin | None = None
    tenant: str = ""


class Response(msgspec.Struct, frozen=True, array_like=True):
    """A response to the request `number`; `observed`: its end is to be told by FINISHED. The rest is InferenceResponse's."""

    number: int
    model_name: str
    model_version: int
    id: str
    outputs: tuple[WireTensor, ...]
    parameters: Mapping[str, ParameterValue]
    error: Failure | None
    final: bool
    refused: bool
    described_by: ModelDescription | None
    observed: bool = False


class Cancel(msgspec.Struct, frozen=True, array_like=True):
    """Nobody waits for this request any more."""

    number: int


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request that the engine observes is over: its answer has left, or there will be none. `status` and `error` are those of
    the answer where they are not the model's. One that was refused here was never submitted: its `number` is 0, and it has model
    and origin."""

    number: int
    finished_ns: int
    status: str
    error: str
    response_bytes: int
    model: str = ""
    origin: Origin | None = None


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """A request was refused there before it came to a model, for one of the reasons of `tpy.refusals`."""

    reason: str


class LostLines(msgspec.Struct, frozen=True, array_like=True):
    """Lines of the log over there could not be written in time, since the last message of this kind."""

    lines: Annotated[int, msgspec.Meta(ge=1)]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The oldest `count` responses of this request, of the ones not yet reported as taken, have been taken."""

    number: int
    count: int


class Release(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of the receiver's shared memory, by offset, that the sender reads no more."""

    offsets: tuple[int, ...]


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A question to a service that takes its time."""

    number: int
    question: Question


class Result(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the call `number`: `value` is msgpack of what the question is answered with."""

    number: int
    error: Failure | None
    value: bytes


class CancelCall(msgspec.Struct, frozen=True, array_like=True):
    """Nobody waits for this call any more."""

    number: int


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """The update that made `revision` has been taken over: requests that come from now on are answered by it."""

    revision: int


class Configure(msgspec.Struct, frozen=True, array_like=True):
    """With this a frontend process may begin to serve: from here on it is waited for when something changes. `options` is for
    whoever made the process run this; `arena_bytes` the size of each of the two shared memories."""

    options: bytes
    arena_bytes: int
    log: LogSettings


class Ready(msgspec.Struct, frozen=True, array_like=True):
    """The ports are served."""


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """The ports cannot be served."""

    failure: Failure


class Stop(msgspec.Struct, frozen=True, array_like=True):
    """Take no more connections, answer what is in flight, and end."""


class Kind(enum.IntEnum):
    """The kind of a frame."""

    CONFIGURE = 1
    REPLICA = 2
    READY = 3
    FAILED = 4
    SUBMIT = 5
    RESPONSE = 6
    CANCEL = 7
    TAKEN = 8
    RELEASE = 9
    CALL = 10
    RESULT = 11
    GIVE_UP = 12
    STOP = 13
    SEEN = 14
    HOLD = 15
    LET_GO = 16
    FORGET_REGION = 17
    FINISHED = 18
    REFUSED = 19
    LOST_LINES = 20


FROM_FRONTEND: dict[int, type[msgspec.Struct]] = {
    Kind.SEEN: Seen,
    Kind.READY: Ready,
    Kind.FAILED: Failed,
    Kind.HOLD: Hold,
    Kind.LET_GO: LetGo,
    Kind.FORGET_REGION: ForgetRegion,
    Kind.SUBMIT: Submit,
    Kind.CANCEL: Cancel,
    Kind.TAKEN: Taken,
    Kind.FINISHED: Finished,
    Kind.REFUSED: Refused,
    Kind.LOST_LINES: LostLines,
    Kind.CALL: Call,
    Kind.GIVE_UP: CancelCall,
    Kind.RELEASE: Release,
}
"""The messages of a frontend process."""

FROM_ENGINE: dict[int, type[msgspec.Struct]] = {
    Kind.CONFIGURE: Configure,
    Kind.REPLICA: ReplicaUpdate,
    Kind.RESPONSE: Response,
    Kind.RESULT: Result,
    Kind.RELEASE: Release,
    Kind.STOP: Stop,
}
"""The messages of the engine."""

_KIND_OF: dict[type[msgspec.Struct], Kind] = {
    message: Kind(kind) for table in (FROM_FRONTEND, FROM_ENGINE) for kind, message in table.items()
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {message: msgspec.msgpack.Decoder(message) for message in _KIND_OF}
T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    """The frame of a message. Raises ValueError for what cannot be encoded: half a surrogate pair, too large a number."""
    try:
        return frame(_KIND_OF[type(message)], _ENCODER.encode(message))
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None


def encode_value(value: object) -> bytes:
    """The `value` of a Result. Raises ValueError as `encode`."""
    try:
        return _ENCODER.encode(value)
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None


def decode_value(value: bytes, kind: type[T]) -> T:
    """The `value` of a Result again. Raises ProtocolError when it is not of `kind`."""
    return _decoded(kind, value)


class Reader:
    """Reads the messages of one direction: FROM_FRONTEND or FROM_ENGINE."""

    def __init__(self, table: Mapping[int, type[msgspec.Struct]]) -> None:
        self._table = dict(table)

    def read(self, kind: int, payload: bytes) -> msgspec.Struct:
        """The message in a frame. Raises ProtocolError for one that is not the peer's."""
        message = self._table.get(kind)
        if message is None:
            raise ProtocolError(f"a frame of kind {kind}, expected one of {sorted(self._table)}")
        found: msgspec.Struct = _decoded(message, payload)
        return found


def _decoded(kind: type[T], data: bytes) -> T:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.msgpack.Decoder(kind)
    try:
        found: T = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProtocolError(f"not a {getattr(kind, '__name__', kind)}: {error}") from None
    return found
