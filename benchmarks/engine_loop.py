"""Sequences on tpy's engine alone, without any network: what batching of sequences is worth before frontends come into it.

`drive` starts it as its own program (settings as one JSON argument). Each stream sends its next request when it has the
answer to the one before, as a client does that has to wait for it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import msgspec
import trio

from benchmarks.load.child import run_child
from benchmarks.plain_loop import picture
from tpy.clock import SystemClock
from tpy.errors import TpyError
from tpy.messages import DataType, InferenceRequest, InferenceResponse, SequencePosition, Tensor
from tpy.services import InferenceService
from tpy.state import ModelStateStore
from tpy_control import ControlMode, ControlOptions, run_control_plane
from tpy_data.engine import DataPlane, DataPlaneOptions, open_data_plane
from tpy_data.registry import BackendRegistry

SWITCH_INTERVAL_S = 0.0005
"""As `tpy serve` has it."""


class _Settings(TypedDict):
    repository: str
    model: str
    input: str
    shape: list[int]
    streams: int
    seconds: float


class EngineResult(msgspec.Struct, frozen=True):
    """`rows` answered in `seconds`, in `executions`; `cpu_s` of all threads."""

    rows: int
    executions: int
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


def drive(repository: Path, model: str, name: str, shape: Sequence[int], *, streams: int, seconds: float) -> EngineResult:
    """Keep this many sequences of the model going for this long, with one FP32 input. Raises LoadFailed."""
    settings: _Settings = {
        "repository": str(repository),
        "model": model,
        "input": name,
        "shape": list(shape),
        "streams": streams,
        "seconds": seconds,
    }
    text, _ = run_child([sys.executable, "-m", "benchmarks.engine_loop", json.dumps(settings)])
    return msgspec.json.decode(text.splitlines()[-1], type=EngineResult)


class _Stream:
    """One sequence: a sink that answers every response with the next request, until the time is over."""

    def __init__(self, service: InferenceService, model: str, tensor: Tensor, number: int) -> None:
        self._service = service
        self._first, self._next, self._last = (
            InferenceRequest(
                model_name=model,
                inputs=(tensor,),
                sequence=SequencePosition(correlation_id=number, start=start, end=end),
            )
            for start, end in ((True, False), (False, False), (False, True))
        )
        self._until_s = 0.0
        self._idle = trio.Event()
        self.answered = 0
        self.error: TpyError | None = None

    async def begin(self) -> None:
        await self._send_until(self._first, 0.0)

    async def go_on(self, until_s: float) -> None:
        self.answered = 0
        await self._send_until(self._next, until_s)

    async def end(self) -> None:
        await self._send_until(self._last, 0.0)

    async def _send_until(self, request: InferenceRequest, until_s: float) -> None:
        self._until_s = until_s
        self._idle = trio.Event()
        self._service.resolve(request.model_name).submit(request, self)
        await self._idle.wait()
        if self.error is not None:
            raise self.error

    def deliver(self, response: InferenceResponse) -> None:
        self.error = response.error
        self.answered += 1
        if self.error is None and time.perf_counter() < self._until_s:
            self._service.resolve(self._next.model_name).submit(self._next, self)
        else:
            self._idle.set()


async def _measure(settings: _Settings) -> EngineResult:
    clock = SystemClock()
    store = ModelStateStore(clock)
    registry = BackendRegistry(log=_write)
    chosen = (settings["model"],)
    options = ControlOptions(repositories=(Path(settings["repository"]),), mode=ControlMode.EXPLICIT, load_models=chosen)
    async with trio.open_nursery() as nursery:
        control = await nursery.start(partial(run_control_plane, options, store, store.desired_writer(), clock=clock))
        async with open_data_plane(DataPlaneOptions(), store, store.observed_writer(), registry, clock) as data:
            await control.wait_startup_settled()
            result = await _stream(data, settings)
        nursery.cancel_scope.cancel()
    registry.close()
    return result


async def _stream(data: DataPlane, settings: _Settings) -> EngineResult:
    tensor = Tensor(settings["input"], DataType.FP32, picture(settings["shape"]))
    streams = [_Stream(data.inference, settings["model"], tensor, number + 1) for number in range(settings["streams"])]
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.begin)
    executions = _executions(data, settings["model"])
    begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.go_on, begin_s + settings["seconds"])
    seconds, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_begin_s
    executions = _executions(data, settings["model"]) - executions
    rows = sum(stream.answered for stream in streams)
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.end)
    return EngineResult(rows=rows, executions=executions, seconds=seconds, cpu_s=cpu_s)


def _executions(data: DataPlane, model: str) -> int:
    return sum(version.execution_count for version in data.statistics(model))


def _write(level: str, message: str) -> None:
    print(f"{level}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    print(msgspec.json.encode(trio.run(_measure, json.loads(sys.argv[1]))).decode())
