"""The headers of messages, as the server reads and writes them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tpy.backend import ExecutionRequest, ExecutionResult
from tpy.errors import Internal, TpyError, Unavailable
from tpy.hot.codec import Result, read_result, write_batches
from tpy.messages import InferenceResponse, Residency, Tensor
from tpy.messages.datatypes import BY_NUMBER
from tpy.regions import RegionArray
from tpy_data.backends.python.protocol import translation
from tpy_data.backends.python.protocol.device_tensors import DeviceTensors
from tpy_data.backends.python.worker.wire.core.batch import Descriptor, Layout, NoMemory, read
from tpy_data.backends.python.worker.wire.core.frames import (
    HEADER_BYTES_MAX,
    JOINED_BYTES_MAX,
    MAGIC,
    VERSION,
    FrameKind,
    ReceivedFrame,
)

RESCHEDULED_CODE = -2

_BY_NUMBER = tuple(BY_NUMBER[number] for number in range(len(BY_NUMBER)))

GIVEN_BACK = ExecutionResult(reschedule=True)

TIMES = tuple[int, int, int]
"""In ns: when a batch was handed to the model, came back from it, and was sent."""


class ModelAnswer(msgspec.Struct, frozen=True, array_like=True):
    """One response of a model; `code` -1 for none of its errors, RESCHEDULED_CODE for no response but another iteration."""

    code: int
    error: str
    parameters: str
    outputs: tuple[Descriptor, ...]


class BatchFailure(msgspec.Struct, frozen=True):
    """The error of all requests of a batch that has another code than INTERNAL."""

    code: int
    text: str


class WorkerReady(msgspec.Struct, frozen=True):
    """The description of a model that a worker has loaded (READY)."""

    is_ready: bool
    """True when the model has a function of this name."""
    limits: tuple[int, int] | None = None
    """Of an engine, the sequences and tokens that it has room for."""


class Called(msgspec.Struct, frozen=True, array_like=True):
    """The request of one model to another (CALL)."""

    model: str
    version: int
    id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: str
    outputs: tuple[str, ...]
    inputs: tuple[Descriptor, ...]
    on_device: bool = False
    """True if outputs may stay on a device."""
    trace: int = 0
    """The number of the record of the request that it belongs to, 0 for none."""


# What a worker asks, and is given a reply to.


class CancelledQuery(msgspec.Struct, frozen=True, tag="cancelled"):
    batch: int
    index: int


class FamilyQuery(msgspec.Struct, frozen=True, tag="family"):
    name: str
    description: str
    kind: int


class MetricQuery(msgspec.Struct, frozen=True, tag="metric"):
    family: int
    labels: dict[str, str]
    buckets: list[float]


class ValueQuery(msgspec.Struct, frozen=True, tag="value"):
    metric: int


class ModelReadyQuery(msgspec.Struct, frozen=True, tag="model_ready"):
    model: str
    version: int | None


class UnloadQuery(msgspec.Struct, frozen=True, tag="unload"):
    model: str
    dependents: bool


class LoadQuery(msgspec.Struct, frozen=True, tag="load"):
    model: str
    config: str
    files: tuple[Descriptor, ...]


Query = CancelledQuery | FamilyQuery | MetricQuery | ValueQuery | ModelReadyQuery | UnloadQuery | LoadQuery

# Its notifications.


class LogNotification(msgspec.Struct, frozen=True, tag="log"):
    level: str
    message: str


class ChangeNotification(msgspec.Struct, frozen=True, tag="change"):
    metric: int
    operation: str
    value: float | str
    """A str for what JSON has no number for."""


class ObservedNotification(msgspec.Struct, frozen=True, tag="observed"):
    """Observations of a histogram, all finite."""

    metric: int
    values: tuple[float, ...]


class CloseFamilyNotification(msgspec.Struct, frozen=True, tag="close_family"):
    family: int


class ReadyNotification(msgspec.Struct, frozen=True, tag="ready"):
    ready: bool
    error: str


Notification = LogNotification | ChangeNotification | ObservedNotification | CloseFamilyNotification | ReadyNotification

encode = msgspec.json.Encoder().encode
decode_ready = msgspec.json.Decoder(WorkerReady).decode
decode_text = msgspec.json.Decoder(str).decode
decode_failed = msgspec.json.Decoder(tuple[int, str]).decode
"""The code and text of an error."""
decode_count = msgspec.json.Decoder(int).decode
decode_result = msgspec.json.Decoder(tuple[TIMES, tuple[ModelAnswer | int | None, ...] | str | BatchFailure]).decode
"""One answer per request: as it is, the number under which it comes later, None when it goes through the request's sender. Or why
the whole batch failed."""
decode_response = msgspec.json.Decoder(tuple[int, bool, ModelAnswer | None]).decode
"""Its place among the request's responses, from 1 on; whether it is the last; None for the end alone."""
decode_call = msgspec.json.Decoder(tuple[int, bool, Called]).decode
"""The number of the batch that waits for it, 0 for none; whether it has many responses."""
decode_call_progress = msgspec.json.Decoder(tuple[tuple[tuple[int, int], ...], tuple[int, ...]]).decode
decode_query = msgspec.json.Decoder(Query).decode
decode_notification = msgspec.json.Decoder(Notification).decode


def standard_frame(number: int, batches: list[Sequence[ExecutionRequest]]) -> bytes | None:
    """The whole frame of EXECUTE of these batches, where the native codec writes it: all of it is small then."""
    return write_batches(MAGIC, FrameKind.EXECUTE, VERSION, number, batches, JOINED_BYTES_MAX)


def standard_result(message: ReceivedFrame, text_bytes_max: int) -> Result[ExecutionResult] | None:
    """The times and results in a message of kind RESULT, where the native codec reads it."""
    return read_result(message.header, message.data, _BY_NUMBER, Tensor, ExecutionResult, text_bytes_max)


def encode_batches(
    batches: Sequence[Sequence[ExecutionRequest]], numbers: Sequence[int] | None, layout: Layout, *, on_device: bool
) -> bytes:
    """The header of EXECUTE, the tensors laid out. `numbers` are those of the requests of a decoupled model; with `on_device`
    tensors on devices stay there. Raises Internal for texts that are too long, TpyError as a device."""
    encoded = []
    index = 0
    for requests in batches:
        entries = []
        for request in requests:
            correlation_id, flags = translation.correlation_and_flags(request.sequence)
            entries.append(
                (
                    request.id,
                    correlation_id,
                    flags,
                    request.timeout_us,
                    translation.parameters_text(request.parameters),
                    translation.wanted_of(request),
                    [
                        layout.add(name, given.datatype.number, translation.storage(given, stays=on_device))
                        for name, given in request.inputs.items()
                    ],
                    0 if numbers is None else numbers[index],
                    None if request.record is None else (request.record.number(), request.record.context),
                )
            )
            index += 1
        encoded.append(entries)
    text = encode(encoded)
    if len(text) > HEADER_BYTES_MAX // 2:
        raise Internal(f"a batch with {len(text)} bytes of request ids, parameters and names is too long to be sent")
    return text


def unreadable(request: ExecutionRequest) -> ExecutionResult | None:
    """The result of a request with an input in a client's region that cannot be read; None for all others. Blocking."""
    try:
        for given in request.inputs.values():
            array: object = given.array
            if isinstance(array, RegionArray):
                array.to_host()
    except TpyError as error:
        return ExecutionResult(error=error.with_traceback(None))
    return None


def result_of(
    answer: ModelAnswer, message: ReceivedFrame, devices: DeviceTensors, residency: Residency | None
) -> ExecutionResult:
    """The result that an answer stands for; its arrays are views, but copies of what is on a device, which stay there as the
    request's `residency` says; an error when there is no memory for them. Raises ProtocolViolation or msgspec.DecodeError."""
    if answer.code == RESCHEDULED_CODE:
        return GIVEN_BACK
    if answer.code >= 0:
        return ExecutionResult(error=translation.error_of(answer.code, answer.error))
    data, segment = message.data, message.segment
    try:
        if any(type(each[3]) is str for each in answer.outputs):
            outputs = [
                received(each, message, devices, stays=residency is not None and residency.keeps(each[0]))
                for each in answer.outputs
            ]
        else:
            outputs = [translation.tensor(each[0], each[1], read(each, data, segment)) for each in answer.outputs]
    except TpyError as error:
        return ExecutionResult(error=error.with_traceback(None))
    except NoMemory as error:
        return ExecutionResult(error=Unavailable(f"the answer cannot be taken: {error}"))
    return translation.result(outputs, translation.parameters_of(answer.parameters))


def received(descriptor: Descriptor, message: ReceivedFrame, devices: DeviceTensors, *, stays: bool) -> Tensor:
    """A tensor of a message, wherever it is. Raises ProtocolViolation, and TpyError when there is no memory."""
    if isinstance(descriptor[3], str):
        array = devices.take(descriptor, stays=stays)
    else:
        try:
            array = read(descriptor, message.data, message.segment)
        except NoMemory as error:
            raise Unavailable(str(error)) from None
    return translation.tensor(descriptor[0], descriptor[1], array)


def encode_answer(answer: InferenceResponse | TpyError, layout: Layout) -> bytes:
    """The header of ANSWER, the tensors laid out; those on devices, which the caller prefers there, stay."""
    error = answer if isinstance(answer, TpyError) else answer.error
    if error is not None or isinstance(answer, TpyError):
        assert error is not None
        final = isinstance(answer, TpyError) or answer.final
        return encode((final, (translation.code_of(error), error.message, "", ())))
    outputs = [layout.add(each.name, each.datatype.number, translation.storage(each, stays=True)) for each in answer.outputs]
    return encode((answer.final, (-1, "", translation.parameters_text(answer.parameters), outputs)))
