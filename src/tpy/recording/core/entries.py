"""The entries of a recording, as docs/reference/recordings.md describes them: msgpack maps, of which members at their default are
left out."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.messages.datatypes import DataType
from tpy.messages.inference import NO_PARAMETERS, ParameterValue
from tpy.messages.recordings import Contents


class RecordedTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor. `data` are its elements in the binary form of the protocol, `sha256` is a hash of that; neither: left out."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes | None = None
    sha256: bytes | None = None


class RecordedResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One response, with its nanoseconds after the arrival of its request. `error` is the text of a response without outputs."""

    after_ns: int
    outputs: tuple[RecordedTensor, ...] = ()
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)
    error: str = ""


class RecordedSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The position of a request in its sequence."""

    id: int | str
    start: bool = False
    end: bool = False


class Beginning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="beginning"):
    """The first entry: who recorded what. `began_ns` is nanoseconds since 1970 in UTC."""

    server: str
    server_version: str
    began_ns: int
    models: tuple[str, ...]
    sample: int = 1
    inputs: Contents = Contents.FULL
    outputs: Contents = Contents.FULL


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="request"):
    """A request that is over, with all that it was answered.

    `arrived_ns` is nanoseconds since 1970 in UTC, `latency_ns` the time until the answer had left. `protocol` is "http", "grpc",
    "grpc-stream", "generate", "openai", "embedded" or "frontend"; `stream` is the same for the requests of one connection with
    streams, "" for others. `version` is the one that was asked for, None: the newest; `served_version` answered. `requested` are
    the outputs that were asked for, () for all. `status` is "OK" or the word of the error, whose text is `error`.
    """

    arrived_ns: int
    latency_ns: int
    protocol: str
    model: str
    version: int | None = None
    served_version: int | None = None
    id: str = ""
    stream: str = ""
    sequence: RecordedSequence | None = None
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=lambda: NO_PARAMETERS)
    priority: int = 0
    timeout_us: int = 0
    inputs: tuple[RecordedTensor, ...] = ()
    requested: tuple[str, ...] = ()
    responses: tuple[RecordedResponse, ...] = ()
    status: str = "OK"
    error: str = ""


class RecordingEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="end"):
    """The last entry of a recording that was ended in order: why, and what is not in it."""

    reason: str
    dropped: int = 0
    unfinished: int = 0


Entry = Beginning | RecordedRequest | RecordingEnd
