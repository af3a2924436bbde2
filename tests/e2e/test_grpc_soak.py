"""The gRPC soak: many calls of `tpy serve`, ended at random moments in all ways. At the end nothing of them is left in the
server: no queue entry, no connection, no memory that grows with the number of calls."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tpy._proto import message_class

from .gated import metrics
from .repositories import ModelFolder
from .server import ServerProcess, tracebacks
from .waiting import wait_until

CALLS = 5_000
CLIENTS = 4
OUTSTANDING = 64
CALLS_OF_A_CHANNEL = 500
GROWTH_BYTES_MAX = 60_000_000
"""Far less than what the calls' tensors have together, far more than noise."""

_SERVICE = "/inference.GRPCInferenceService/"
_MODELS = ("quick", "gathering")
_BODIES = (1, 1, 1, 20_000)
"""Elements."""

_Counts = Counter[str]


def _request(model: str, rows: int) -> bytes:
    request = message_class("inference.ModelInferRequest")(model_name=model)
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[rows, 1])
    request.raw_input_contents.append(bytes(4 * rows))
    return request.SerializeToString()


class _Client:
    """One thread's calls. A channel is thrown away, with the calls in flight on it, every CALLS_OF_A_CHANNEL calls."""

    def __init__(self, target: str, seed: int) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self._requests = [_request(model, rows) for model in _MODELS for rows in _BODIES]
        self._counts = _Counts()

    def run(self, calls: int) -> _Counts:
        """Make so many calls; how many ended with each status."""
        for begin in range(0, calls, CALLS_OF_A_CHANNEL):
            with grpc.insecure_channel(self._target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
                self._use(channel, min(CALLS_OF_A_CHANNEL, calls - begin))
        return self._counts

    def _use(self, channel: grpc.Channel, calls: int) -> None:
        chance = self._chance
        infer, stream = channel.unary_unary(f"{_SERVICE}ModelInfer"), channel.stream_stream(f"{_SERVICE}ModelStreamInfer")
        outstanding: list[grpc.Future] = []
        for _ in range(calls):
            if chance.random() < 0.1:
                self._talk(stream)
                continue
            outstanding.append(infer.future(chance.choice(self._requests), timeout=chance.choice((None, 30, 0.002, 0.02))))
            if chance.random() < 0.3:
                chance.choice(outstanding).cancel()
            if len(outstanding) >= OUTSTANDING:
                self._finish(outstanding.pop(0))
        for call in outstanding[OUTSTANDING // 2 :]:  # the others are in flight when the channel is closed
            self._finish(call)

    def _talk(self, stream: grpc.StreamStreamMultiCallable) -> None:
        requests = self._chance.choices(self._requests, k=3)
        answers = stream(iter(requests), timeout=30)
        for _ in range(self._chance.randrange(4)):
            next(answers)
        answers.cancel()
        self._counts["stream"] += 1

    def _finish(self, call: grpc.Future) -> None:
        try:
            call.result(30)
            self._counts["OK"] += 1
        except grpc.FutureCancelledError:
            self._counts["CANCELLED"] += 1
        except grpc.RpcError as error:
            self._counts[error.code().name] += 1


def _resident_bytes(server: ServerProcess) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _run(server: ServerProcess, calls: int, seed: int) -> _Counts:
    with ThreadPoolExecutor(CLIENTS) as pool:
        runs = [pool.submit(_Client(server.grpc, seed + number).run, calls // CLIENTS) for number in range(CLIENTS)]
        return sum((run.result() for run in runs), _Counts())


@pytest.mark.time_limit(600)
def test_nothing_is_left_of_many_calls(repository: Path, soak: int) -> None:
    ModelFolder(repository, "quick").identity(batch=32_768)
    delayed = "dynamic_batching { max_queue_delay_microseconds: 5000 preferred_batch_size: [ 32768 ] }"
    ModelFolder(repository, "gathering").identity(delayed, batch=32_768)
    with ServerProcess(repositories=[repository]) as server:
        _run(server, CALLS // 10, seed=100)
        files, resident = server.open_files().total(), _resident_bytes(server)
        counts = _run(server, CALLS * soak, seed=1)

        pending = [f'nv_inference_pending_request_count{{model="{model}",version="1"}}' for model in _MODELS]
        wait_until(lambda: all(metrics(server)[series] == 0 for series in pending))
        wait_until(lambda: server.open_files().total() <= files)
        assert server.timers() <= len(_MODELS)
        assert _resident_bytes(server) - resident < GROWTH_BYTES_MAX
        assert counts.keys() <= {"OK", "CANCELLED", "DEADLINE_EXCEEDED", "stream"}
        assert not tracebacks(server.log)
        assert min(counts[end] for end in ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "stream")) > CALLS * soak // 100
        assert server.stop() == 0
