"""Messages and documents that are made to cost."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc

from .arena import Arena, Outcome, measured, serving

_MIB = 1_000_000
_MODEL = b"\x0a\x06affine"
_SERVICE = "/inference.GRPCInferenceService/"
FIELDS = {"raw_input_contents": b"\x3a\x00", "inputs": b"\x2a\x00", "outputs": b"\x32\x00"}
_PATIENCE_S = 40.0
_REFUSED_S_MAX = 25.0
_AVAILABLE_KIB_MIN = 14 * 1024 * 1024


def count_bomb(folder: Path, *, field: str, megabytes: int, gzip: bool = False, stream: bool = False) -> Outcome:
    """A request of very many empty fields."""
    request = _MODEL + FIELDS[field] * (megabytes * _MIB // 2)
    compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
    with serving(folder) as arena, grpc.insecure_channel(arena.server.grpc) as channel, measured(arena) as outcome:
        try:
            if stream:
                answers = channel.stream_stream(_SERVICE + "ModelStreamInfer")(
                    iter([request]), timeout=_PATIENCE_S, compression=compression
                )
                outcome.note(f"{len(list(answers))} answers")
            else:
                channel.unary_unary(_SERVICE + "ModelInfer")(request, timeout=_PATIENCE_S, compression=compression)
        except grpc.RpcError as error:
            outcome.note(error.code().name)
    return outcome


def refused_documents(folder: Path, *, megabytes: int, times: int, clients: int = 1) -> Outcome:
    """Documents of empty objects, each refused."""
    if clients > 1 and _available_kib() < _AVAILABLE_KIB_MIN:
        outcome = Outcome()
        outcome.note("skipped: not enough memory")
        return outcome
    body = b'{"inputs":[' + b"{}," * (megabytes * _MIB // 3) + b"{}]}"
    statuses: list[int] = []
    with serving(folder) as arena, measured(arena) as outcome:
        until = time.monotonic() + _REFUSED_S_MAX
        threads = [threading.Thread(target=_send, args=(arena, body, times, until, statuses)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcome.note(f"{len(statuses)} of {times * clients} sent, {_counted(statuses)}")
    return outcome


def _send(arena: Arena, body: bytes, times: int, until: float, statuses: list[int]) -> None:
    for _ in range(times):
        if time.monotonic() > until:
            return
        statuses.append(arena.ask("POST", "/v2/models/affine/infer", body, timeout_s=_PATIENCE_S)[0])


def _counted(statuses: list[int]) -> str:
    return ", ".join(f"{statuses.count(status)} times {status or 'no answer'}" for status in sorted(set(statuses)))


def _available_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
