"""Warmup: the requests of `model_warmup`, and running them on a fresh instance. Blocking; runs in threads."""

from __future__ import annotations

import logging
import random
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tpy.backend import (
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    ModelInstance,
    PhaseTimes,
    ResponseSender,
    SequenceState,
)
from tpy.config import ModelConfig
from tpy.config.model_config import Warmup, WarmupInput
from tpy.echo import request_prefix
from tpy.errors import InvalidArgument, TpyError
from tpy.messages import DataType, InferenceRequest, ParameterValue, RequestRecord, Residency, SequencePosition, Tensor
from tpy_data.engine.admission.admission import Admission
from tpy_data.engine.admission.sequence_controls import SequenceControls
from tpy_data.engine.loading.model_files import InitialStates, read_beside, strings_in
from tpy_data.exception_text import exception_text

_log = logging.getLogger(__name__)


class WarmupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the backend sees it."""

    inputs: Mapping[str, Tensor]
    batch_size: int
    id: str = ""
    requested_outputs: tuple[str, ...] = ()
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=dict)
    record: RequestRecord | None = None
    residency: Residency | None = None
    sequence: SequencePosition | None = None
    timeout_us: int = 0
    sender: ResponseSender | None = None
    state: SequenceState | None = None

    def is_cancelled(self) -> bool:
        """Never: the load waits for it."""
        return False


class WarmupSample(NamedTuple):
    """`requests` run together, as often as `repetitions` says."""

    name: str
    requests: Sequence[WarmupRequest]
    repetitions: int
    decoupled: bool = False


class _WarmupSender:
    """The sender of a warm-up request of a decoupled model: waits for the final response, keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.finished = threading.Event()

    def send(self, result: ExecutionResult | None, *, final: bool, wait: bool = True) -> None:
        """Raises ValueError after the final response."""
        if self.finished.is_set():
            raise ValueError("the final response was sent already")
        if result is not None and result.error is not None:
            self.errors.append(result.error.message)
        if final:
            self.finished.set()
        elif self._taken is not None:
            self._taken(1)

    def is_full(self) -> bool:
        """Never."""
        return False

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """Takes everything at once, and never gives up."""
        self._taken = taken

    _taken: Callable[[int], None] | None = None


def make_samples(config: ModelConfig, model_directory: Path, states: InitialStates | None) -> tuple[WarmupSample, ...]:
    """The samples of the configuration. One with batch_size 0 is skipped, as Triton does.

    Raises InvalidArgument for a sample that is not a request the model takes, Internal for a file that cannot be read.
    """
    return tuple(_sample(config, warmup, model_directory, states) for warmup in config.model_warmup if warmup.batch_size > 0)


def run_samples(instance: ModelInstance, samples: Sequence[WarmupSample], *, name: str) -> None:
    """Run every sample on the instance of this name. Raises InvalidArgument, with Triton's text, at the first that does not
    succeed."""
    for sample in samples:
        for iteration in range(1, sample.repetitions + 1):
            values = {"name": name, "sample": sample.name, "iteration": iteration}
            _log.debug("instance %(name)s is running warmup sample '%(sample)s' for iteration %(iteration)s", values)
            errors = _run(instance, sample)
            if errors:
                texts = "".join(f"{error}; " for error in errors)
                raise InvalidArgument(f"failed to run warmup sample '{sample.name}': {texts}")


def _run(instance: ModelInstance, sample: WarmupSample) -> list[str]:
    """The error texts; one raised for the whole batch counts for each request, as in Triton."""
    senders = [_WarmupSender() for _ in sample.requests] if sample.decoupled else []
    requests = sample.requests
    if senders:
        requests = [msgspec.structs.replace(each, sender=sender) for each, sender in zip(requests, senders, strict=True)]
    try:
        results = instance.execute(ExecutionBatch(requests, PhaseTimes()))
    except (TpyError, InstanceFailure) as error:
        return [str(error)] * len(sample.requests)
    except Exception as error:
        return [exception_text(error)] * len(sample.requests)
    for sender in senders:
        sender.finished.wait()
    texts = [error for sender in senders for error in sender.errors]
    return [*texts, *(result.error.message for result in results if result.error is not None)]


def _sample(config: ModelConfig, warmup: Warmup, model_directory: Path, states: InitialStates | None) -> WarmupSample:
    """`batch_size` requests of one row each (of no batch dimension when the model does not batch: then it is one request).

    To a sequence model each is the first of a sequence with the id 0; control tensors that the sample has itself go before
    ours. In Triton there are no others.
    """
    batching = config.max_batch_size > 0
    size = warmup.batch_size if batching else 1
    if batching and size > config.max_batch_size:
        text = f"batch size {size} for '{config.name}', max allowed is {config.max_batch_size}; "
        raise InvalidArgument(f"failed to run warmup sample '{warmup.name}': {text * size}")
    shape_tensors = {given.name for given in config.input if given.is_shape_tensor}
    tensors = tuple(
        _tensor(name, entry, warmup.name, model_directory, batching=batching and name not in shape_tensors)
        for name, entry in warmup.inputs.items()
    )
    made = SequenceControls(config)
    controls = {**made.idle, **made.flags(start=True, end=False)}
    own = tuple(tensor for tensor in tensors if tensor.name not in controls)
    admitted = Admission(config).admit(InferenceRequest(model_name=config.name, inputs=own))
    controls.update({tensor.name: tensor for tensor in tensors if tensor.name in controls})
    inputs = {**admitted.inputs, **controls}
    requests = [WarmupRequest(inputs=inputs, batch_size=1, state=states.begin() if states else None) for _ in range(size)]
    return WarmupSample(warmup.name, requests, max(1, warmup.count), config.decoupled)


def _tensor(name: str, entry: WarmupInput, sample: str, model_directory: Path, *, batching: bool) -> Tensor:
    if any(dim < 0 for dim in entry.dims):
        raise InvalidArgument(f"warmup setting expects all variable-size dimensions are specified for input '{name}'")
    if entry.data_type is DataType.INVALID:
        raise InvalidArgument(f"warmup sample '{sample}' must specify 'data_type' for input '{name}'")
    shape = (1, *entry.dims) if batching else entry.dims
    if entry.input_data_file is not None:
        content = read_beside(model_directory / "warmup", entry.input_data_file)
        flat = _from_file(content, entry.data_type, prod(shape), entry.input_data_file)
    elif entry.random_data:
        # Seeded by the name, so that a warmup that fails fails again.
        flat = _random(entry.data_type, prod(shape), zlib.crc32(f"{sample}/{name}".encode()))
    elif entry.zero_data:
        flat = _zero(entry.data_type, prod(shape))
    else:
        raise InvalidArgument(f"{request_prefix('')}warmup setting expects input '{name}' to have input_data_type set")
    return Tensor(name, entry.data_type, flat.reshape(shape))


def _zero(datatype: DataType, elements: int) -> np.ndarray[Any, Any]:
    if datatype is DataType.BYTES:
        return np.full(elements, b"", dtype=object)
    return np.zeros(elements, datatype.numpy)


def _random(datatype: DataType, elements: int, seed: int) -> np.ndarray[Any, Any]:
    """Any bits for integers; [0, 1) for floats, so that there is no NaN that a model trips over; empty strings."""
    if datatype is DataType.BYTES:
        return _zero(datatype, elements)
    source = random.Random(seed)
    if datatype is DataType.BOOL:
        return np.frombuffer(source.randbytes(elements), np.uint8) > 127
    if datatype in (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64):
        bits = np.frombuffer(source.randbytes(elements * 2), np.uint16)
        return np.asarray(bits / 65536, dtype=datatype.numpy)
    return np.frombuffer(source.randbytes(elements * datatype.itemsize), datatype.numpy)


def _from_file(content: bytes, datatype: DataType, elements: int, name: str) -> np.ndarray[Any, Any]:
    """Raw little-endian values; for BYTES, elements with a length in front. More than needed is left alone, as in Triton."""
    if datatype is DataType.BYTES:
        return _strings(content, elements, name)
    expected = elements * datatype.itemsize
    if len(content) < expected:
        raise InvalidArgument(
            f"{request_prefix('')}warmup setting expects {expected} bytes, but the data provided from {name} only has "
            f"{len(content)} bytes"
        )
    return np.frombuffer(content[:expected], datatype.numpy)


def _strings(content: bytes, elements: int, name: str) -> np.ndarray[Any, Any]:
    strings = strings_in(content, elements)
    if len(strings) < elements:
        raise InvalidArgument(
            f"{request_prefix('')}warmup setting expects {elements} string elements, but the data provided from {name} "
            f"only has {len(strings)}"
        )
    flat = np.empty(elements, dtype=object)
    flat[:] = strings
    return flat
