"""The soak of sequences: a thousand of them, interleaved over HTTP and on gRPC streams, that end, are left alone, begin anew, are
cancelled at random moments, or lose the worker that has their state. No answer is of another sequence, every counter balances at
the end, and nothing is left of any of them: no slot, no request, no file, no memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import service_pb2 as pb

from tpy.units import MIB
from tpy_data.backends.python.worker.wire.segments import FREE_BYTES_MAX

from .gated import metrics
from .sequence_models import build
from .server import ServerProcess
from .waiting import wait_until

SEQUENCES = 1_000
KILLS = 3
IDLE_MS = 400
STREAM_CLIENTS = 3
HTTP_CLIENTS = 6
SEQUENCES_OF_A_STREAM = 24
IDS = 30
"""Of each client: few, so that they are begun anew soon, often before what had them is over."""
GROWTH_BYTES_MAX = 40_000_000
_SEQUENCES_OF_A_KILL = 15
"""Begun until the next worker is killed, if the last one had no sequence."""

LOST = (
    "was lost: the model instance that held it failed",
    "the sequence was lost: the model instance that held it",
    "is not healthy",
    "has no available versions",
    "is not at ready state",
    "no instance of the model is left",
)
GONE = (
    "must specify the START flag",
    "the sequence was cancelled",
    "timeout of the corresponding sequence",
    "Request timeout expired",
)
"""Errors that a client may get whose sequence was idle, or was cancelled with an earlier request; or that waited for too long, or
longer than its stream may take."""


WORKERS = 4
"""Two for each of the python models."""

SEGMENT_BYTES_MAX = WORKERS * 2 * (FREE_BYTES_MAX + 3 * MIB)
"""Of shared memory, each way: what is kept free, and segments whose end the other side hears of with the next batch."""

PYTHON = ("places", "ids")

LARGE = 20_000
"""Elements of what goes through shared memory."""


class Step(NamedTuple):
    """One request, with so many elements; `expected` is its sum."""

    model: str
    id: int | str
    value: float
    start: bool
    end: bool
    expected: float
    size: int = 1

    def tensor(self) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Only its last element counts."""
        array = np.zeros((1, self.size), np.float32)
        array[0, -1] = self.value
        return array


class Tally:
    """Counts of the clients' requests and their outcomes, by model. Any thread."""

    def __init__(self, sequences: int) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self._left = sequences
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """Sequences that nobody has begun yet."""
        return self._left

    @property
    def lost(self) -> int:
        """Sequences whose worker ended."""
        with self._lock:
            return sum(count for (_, what), count in self.counts.items() if what == "lost")

    def take(self, wanted: int) -> int:
        """The number of sequences to make now, at most `wanted`."""
        with self._lock:
            taken = min(wanted, self._left)
            self._left -= taken
            return taken

    def add(self, model: str, what: str) -> None:
        """Count one more."""
        with self._lock:
            self.counts[model, what] += 1

    def answered(self, step: Step, total: float) -> None:
        """A sum came."""
        self.add(step.model, "OK")
        if not math.isclose(total, step.expected):
            self.wrong.append(f"{step} got {total}")

    def refused(self, step: Step, text: str) -> None:
        """An error came; its sequence is over for the client."""
        for what, texts in (("lost", LOST), ("gone", GONE)):
            if any(each in text for each in texts):
                self.add(step.model, what)
                return
        self.wrong.append(f"{step} got {text}")


class Plan:
    """Random sequences for one client."""

    def __init__(self, seed: int, models: Sequence[str]) -> None:
        self.chance = random.Random(seed)
        self._models = models
        self._numbers = itertools.count()
        self._prefix = seed

    def sequence(self) -> list[Step]:
        """1 to 6 steps; it may begin anew in the middle, and may lack its end."""
        chance, number = self.chance, next(self._numbers) % IDS
        id: int | str = f"c{self._prefix}-{number}" if number % 2 else self._prefix * 1000 + number + 1
        model, length = chance.choice(self._models), chance.randint(1, 6)
        again = chance.randrange(1, length) if length > 2 and chance.random() < 0.1 else 0
        ends = chance.random() < 0.94
        total, steps = 0.0, []
        for position in range(length):
            start = position in (0, again)
            value = float(chance.randint(1, 1000))
            total = value if start else total + value
            size = LARGE if model in PYTHON and chance.random() < 0.15 else 1
            steps.append(Step(model, id, value, start, ends and position == length - 1, total, size))
        return steps

    def interleaved(self, count: int) -> list[Step]:
        """The steps of so many sequences in a random order that keeps each one's own."""
        left = [sequence[::-1] for sequence in (self.sequence() for _ in range(count))]
        steps = []
        while left:
            sequence = self.chance.choice(left)
            steps.append(sequence.pop())
            if not sequence:
                left.remove(sequence)
        return steps


def _message(step: Step, number: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=step.model, id=str(number))
    request.inputs.add(name="X", datatype="FP32", shape=[1, step.size])
    request.raw_input_contents.append(step.tensor().tobytes())
    if isinstance(step.id, str):
        request.parameters["sequence_id"].string_param = step.id
    else:
        request.parameters["sequence_id"].int64_param = step.id
    request.parameters["sequence_start"].bool_param = step.start
    request.parameters["sequence_end"].bool_param = step.end
    return request


class StreamClient:
    """One thread: stream after stream, each with many sequences. Some streams are cancelled, some run into their deadline."""

    def __init__(self, address: str, plan: Plan, tally: Tally) -> None:
        self._address = address
        self._plan = plan
        self._tally = tally

    def run(self) -> None:
        """Until there is nothing left to begin."""
        with grpc.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while count := self._tally.take(SEQUENCES_OF_A_STREAM):
                self._talk(stub, self._plan.interleaved(count))

    def _talk(self, stub: tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub, steps: list[Step]) -> None:
        chance = self._plan.chance
        fate = chance.random()
        messages = (_message(step, number) for number, step in enumerate(steps))
        call = stub.ModelStreamInfer(messages, timeout=chance.uniform(0.002, 0.1) if fate < 0.06 else 60)
        reads = chance.randrange(len(steps)) if 0.06 <= fate < 0.15 else len(steps)
        broken: set[tuple[str, int | str]] = set()
        seen = 0
        try:
            for answer in itertools.islice(call, reads):
                self._take(steps[seen], int(answer.infer_response.id), seen, answer, broken)
                seen += 1
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self._tally.wrong.append(f"a stream ended with {error.code()}: {error.details()}")
        call.cancel()
        if fate >= 0.15 and seen != len(steps):
            self._tally.wrong.append(f"{seen} answers to {len(steps)} requests")
        for step in steps[seen:]:
            self._tally.add(step.model, "cancelled")

    def _take(
        self, step: Step, id: int, position: int, answer: pb.ModelStreamInferResponse, broken: set[tuple[str, int | str]]
    ) -> None:
        key = step.model, step.id
        if step.start:
            broken.discard(key)
        if id != position:
            self._tally.wrong.append(f"request {position} was answered as {id}")
        elif answer.error_message:
            self._tally.refused(step, answer.error_message)
            broken.add(key)
        elif key in broken:
            self._tally.wrong.append(f"{step} was answered after its sequence was lost")
        else:
            self._tally.answered(step, float(np.frombuffer(answer.infer_response.raw_output_contents[0], np.float32)[0]))


class HttpClient:
    """One thread: sequence after sequence. Some requests are given up by closing the connection, some sequences may not wait for
    long."""

    def __init__(self, address: str, plan: Plan, tally: Tally) -> None:
        self._address = address
        self._plan = plan
        self._tally = tally

    def run(self) -> None:
        """Until there is nothing left to begin."""
        connection = HTTPConnection(self._address, timeout=60)
        try:
            while self._tally.take(1):
                self._sequence(connection, self._plan.sequence())
        finally:
            connection.close()

    def _sequence(self, connection: HTTPConnection, steps: list[Step]) -> None:
        chance = self._plan.chance
        patience_us = 20_000 if chance.random() < 0.1 else 0
        given_up = chance.randrange(len(steps)) if chance.random() < 0.08 else None
        for position, step in enumerate(steps):
            parameters: dict[str, object] = {"sequence_id": step.id, "sequence_start": step.start, "sequence_end": step.end}
            if patience_us:
                parameters["timeout"] = patience_us
            tensor = {"name": "X", "shape": [1, step.size], "datatype": "FP32", "data": step.tensor().ravel().tolist()}
            body = json.dumps({"inputs": [tensor], "parameters": parameters})
            connection.request("POST", f"/v2/models/{step.model}/infer", body)
            if position == given_up:
                connection.close()  # it is opened again by the next request
                self._tally.add(step.model, "cancelled")
                return
            reply = json.loads(connection.getresponse().read())
            if "error" in reply:
                self._tally.refused(step, reply["error"])
                return
            self._tally.answered(step, reply["outputs"][0]["data"][0])


class Remains:
    """The resources of a server, as its machine sees them: open files besides those of shared memory and timers, mapped bytes
    of that memory, timers, resident bytes."""

    def __init__(self, server: ServerProcess) -> None:
        process = Path(f"/proc/{server.process.pid}")
        self.files = sum(count for file, count in server.open_files().items() if "memfd:" not in file)
        self.timers = server.timers()
        mapped = [line.split()[0] for line in (process / "maps").read_text().splitlines() if "memfd:" in line]
        self.segment_bytes = sum(int(end, 16) - int(begin, 16) for begin, _, end in (place.partition("-") for place in mapped))
        self.resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def no_more_than(self, before: Remains) -> bool:
        """Returns True if there are no more files than before, and no more shared memory than workers keep for the next large
        tensors."""
        return self.files <= before.files and self.segment_bytes <= SEGMENT_BYTES_MAX


def _soak(server: ServerProcess, models: Sequence[str], sequences: int, *, kills: int, seed: int) -> Tally:
    tally = Tally(sequences)
    seeds = iter(range(seed, seed + STREAM_CLIENTS + HTTP_CLIENTS))
    runs: list[Callable[[], None]] = [
        StreamClient(server.grpc, Plan(next(seeds), models), tally).run for _ in range(STREAM_CLIENTS)
    ]
    runs += [HttpClient(server.http, Plan(next(seeds), models), tally).run for _ in range(HTTP_CLIENTS)]
    with ThreadPoolExecutor(len(runs)) as pool:
        futures = [pool.submit(run) for run in runs]
        for left in _moments(sequences, kills):
            wait_until(lambda left=left: tally.left <= left or tally.wrong, within_s=120)
            _kill_one_with_sequences(server, tally, random.Random(left))
        for future in futures:
            future.result()
    return tally


def _kill_one_with_sequences(server: ServerProcess, tally: Tally, chance: random.Random) -> None:
    """Kill workers, one after another, until a client has lost a sequence: a worker may have none just now, and its client hears
    of it with its next request."""
    lost = tally.lost
    while tally.lost == lost and tally.left:
        if workers := server.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        enough = tally.left - _SEQUENCES_OF_A_KILL
        wait_until(lambda enough=enough: tally.lost > lost or tally.left <= max(enough, 0), within_s=120)


def _moments(sequences: int, kills: int) -> Iterator[int]:
    """The number of sequences left each time a worker is killed."""
    for number in range(1, kills + 1):
        yield sequences - sequences * number // (kills + 1)


def _all_slots_are_free(server: ServerProcess, model: str, slots: int) -> bool:
    """Returns True if as many sequences as there are slots can live at once: one without a slot is refused before others are
    idle."""
    steps = [Step(model, f"probe {number}", 1, True, False, 1) for number in range(slots)]
    steps += [step._replace(start=False, end=True) for step in steps]
    messages = [_message(step, number) for number, step in enumerate(steps)]
    for message in messages:
        message.parameters["timeout"].int64_param = IDLE_MS * 1000 // 2
    all_begun = threading.Event()

    def requests() -> Iterator[pb.ModelInferRequest]:
        yield from messages[:slots]
        all_begun.wait()
        yield from messages[slots:]

    errors: list[str] = []
    with grpc.insecure_channel(server.grpc) as channel:
        stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            for number, answer in enumerate(stub.ModelStreamInfer(requests(), timeout=60), 1):
                errors.append(answer.error_message)
                if number == slots:
                    all_begun.set()
        finally:
            all_begun.set()
    return not any(errors)


def _sums(server: ServerProcess, model: str) -> dict[str, float]:
    """The server's counts so far; the failures of all kinds are added up."""
    sums: dict[str, float] = {}
    for series, value in metrics(server).items():
        if f'model="{model}"' in series:
            name = series.partition("{")[0]
            sums[name] = sums.get(name, 0) + value
    return sums


def _require_balance(model: str, before: dict[str, float], after: dict[str, float], tally: Tally) -> None:
    """Compare the server's counts with the clients'; for a request that a client did not wait for it may be anything."""
    succeeded, failed, refused, executed = (
        after[series] - before[series]
        for series in (
            "nv_inference_request_success",
            "nv_inference_request_failure",
            "tpy_inference_refused_total",
            "nv_inference_count",
        )
    )
    counts = tally.counts
    told, unknown = counts[model, "OK"], counts[model, "cancelled"]
    errors = counts[model, "lost"] + counts[model, "gone"]
    assert told <= succeeded <= told + unknown, model
    assert counts[model, "gone"] <= failed + refused <= errors + unknown, model
    assert told + counts[model, "gone"] <= succeeded + failed + refused <= told + errors + unknown, model
    assert executed >= succeeded, model


@pytest.mark.time_limit(600)
def test_nothing_is_left_of_many_sequences(repository: Path, soak: int) -> None:
    sequences, kills = SEQUENCES * soak, KILLS * soak
    slots = build(repository, idle_ms=IDLE_MS)

    def settle() -> None:
        wait_until(lambda: len(server.children()) == WORKERS)
        wait_until(lambda: all(_all_slots_are_free(server, model, count) for model, count in slots.items()))

    with ServerProcess(repositories=[repository]) as server:
        warm = _soak(server, list(slots), sequences // 10, kills=1, seed=100)
        assert warm.wrong == []
        settle()
        remains, before = Remains(server), {model: _sums(server, model) for model in slots}

        tally = _soak(server, list(slots), sequences, kills=kills, seed=1)
        assert tally.wrong[:5] == []
        for model in slots:
            wait_until(lambda model=model: _sums(server, model)["nv_inference_pending_request_count"] == 0)
            _require_balance(model, before[model], _sums(server, model), tally)
        settle()
        wait_until(lambda: Remains(server).no_more_than(remains))
        assert Remains(server).timers <= len(slots)
        assert Remains(server).resident - remains.resident < GROWTH_BYTES_MAX

        told: Counter[str] = Counter()
        for (_, what), count in tally.counts.items():
            told[what] += count
        assert told["OK"] > sequences, told
        assert told["lost"] >= kills, told
        assert min(told["gone"], told["cancelled"]) > 0, told  # on a busy machine few are given up
