"""One measurement: the requests of a model, and the figures of what a meter found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tpy_tools.analyze.core.goal import Figures, Row, together
from tpy_tools.analyze.core.space import REQUEST_BATCH, Point
from tpy_tools.analyze.places import ServerAccess
from tpy_tools.analyze.plan import AnalysisError, LoadPlan, Profile
from tpy_tools.load import (
    Level,
    LevelResult,
    MeasuredServer,
    Meter,
    ModelFacts,
    PlannedCall,
    Rules,
    SequenceSettings,
    Target,
    Template,
    Workload,
    encode_grpc,
    encode_http,
)
from tpy_tools.load.data import DataError, DataOptions, Streams, generated, read_files

_NS_PER_MS = 1e6
_BYTES_PER_MB = 1e6
_WARM_UP = 0.3
"""Of a window, before each measurement."""

_SEQUENCE_LENGTH = 20
_GENERATED = ("zero", "random")


class NotAsAsked(Exception):
    """A configuration that cannot be measured. `str()` says why."""


def meter_of(profile: Profile, access: ServerAccess, point: Point) -> Meter:
    """The meter of a model that is loaded. Raises NotAsAsked, AnalysisError, ServerError."""
    load = profile.load
    protocol = "grpc-stream" if load.streaming else load.protocol
    facts = MeasuredServer(access.target(protocol), access.headers).model(profile.model)
    if facts.decoupled:
        protocol = "grpc-stream"  # over HTTP a decoupled model cannot answer
    target = access.target(protocol)
    batch = int(str(dict(point.candidate.settings).get(REQUEST_BATCH, load.batch_sizes[0])))
    if batch > 1 and batch > facts.max_batch_size:
        raise NotAsAsked(f"requests of {batch} do not fit into max_batch_size {facts.max_batch_size}")
    return Meter(
        Workload(
            target=target,
            model=facts.name,
            streams=_encoded(access, target, facts, load, batch),
            batch=batch,
            sequences=_sequences(load) if facts.sequences else None,
            sequences_running=max(1, point.concurrency),
        ),
        Rules(
            window_s=load.window_s,
            windows_max=load.windows_max,
            stable_percent=load.stable_percent,
            percentile=load.percentile,
            warmup_s=load.window_s * _WARM_UP,
        ),
        server=MeasuredServer(target, access.headers),
        local=access.local,
    )


def level_of(profile: Profile, point: Point, *, by_rate: bool) -> Level:
    """The amount of load of a point."""
    if by_rate:
        return Level(rate=float(point.concurrency), poisson=profile.load.poisson)
    return Level(concurrency=point.concurrency)


def _encoded(access: ServerAccess, target: Target, facts: ModelFacts, load: LoadPlan, batch: int) -> list[list[Template]]:
    """The requests. Raises AnalysisError for data that do not fit the model."""
    parameters = {"triton_enable_empty_final_response": True} if target.protocol == "grpc-stream" else {}
    calls = [
        [PlannedCall(model=facts.name, inputs=entry.inputs, parameters=parameters) for entry in stream]
        for stream in _data(facts, load, batch)
    ]
    if target.protocol != "http":
        return [[encode_grpc(call) for call in stream] for stream in calls]
    return [[encode_http(call, target.authority, access.headers) for call in stream] for stream in calls]


def _data(facts: ModelFacts, load: LoadPlan, batch: int) -> Streams:
    options = DataOptions(
        shapes=load.shapes,
        batch=batch if facts.max_batch_size else 0,
        string_length=load.string_length,
        string_data=load.string_data,
    )
    try:
        if load.input_data in _GENERATED:
            return generated(facts, options, zero=load.input_data == "zero")
        return read_files([Path(load.input_data)], facts, options)
    except DataError as error:
        raise AnalysisError(str(error)) from None
    except OSError as error:
        raise AnalysisError(f"{load.input_data}: {error.strerror}") from None


def _sequences(load: LoadPlan) -> SequenceSettings:
    length = load.sequence_length or (_SEQUENCE_LENGTH if load.input_data in _GENERATED else 0)
    return SequenceSettings(length=length, variation=load.sequence_variation)


def row_of(
    point: Point, results: Mapping[str, LevelResult], memory: Mapping[str, Mapping[str, float]], *, empty_bytes: int = 0
) -> Row:
    """The row of a measurement. `memory`: megabytes by its type, CPU or GPU, of each model, as the server's statistics say.

    Where the server's processes are on this machine the memory of all models together is what they have grown since the server
    was empty: with what executions need, which statistics of a load do not have.
    """
    problem = next((error for result in results.values() for error in result.errors), "")
    parts = {name: _figures(result, memory[name]) for name, result in results.items()}
    figures = together(list(parts.values()))
    used = next((result.usage for result in results.values() if result.usage is not None), None)
    if used is not None:
        grown_mb = max(0, used.resident_bytes - empty_bytes) / _BYTES_PER_MB
        figures = msgspec.structs.replace(figures, memory_mb=grown_mb)
    return Row(point=point, figures=figures, parts=parts if len(parts) > 1 else {}, problem=problem)


def _figures(result: LevelResult, memory_mb: Mapping[str, float]) -> Figures:
    latencies, server = result.latencies, result.server
    percentiles = {f"p{percent}_ms": latencies.percentile_ns(percent) / _NS_PER_MS for percent in (50, 90, 95, 99)}
    succeeded = server.success.count if server is not None else 0
    several = result.first.count > 0
    return Figures(
        throughput=result.inferences_per_s,
        avg_ms=latencies.mean_ns / _NS_PER_MS,
        **percentiles,
        queue_ms=server.queue.ns / succeeded / _NS_PER_MS if server is not None and succeeded else 0.0,
        compute_ms=server.compute_infer.ns / succeeded / _NS_PER_MS if server is not None and succeeded else 0.0,
        batch=server.inferences / server.executions if server is not None and server.executions else 0.0,
        memory_mb=memory_mb.get("CPU"),
        gpu_memory_mb=memory_mb.get("GPU"),
        responses_per_s=result.responses / result.seconds if several and result.seconds else None,
        first_p99_ms=result.first.percentile_ns(99) / _NS_PER_MS if several else None,
        between_p99_ms=result.between.percentile_ns(99) / _NS_PER_MS if result.between.count else None,
        errors=result.errors.total(),
        stable=result.stable,
    )


def level_line(number: int, row: Row, level: str) -> str:
    """A measurement in a line."""
    place = f"{number}. {row.point.candidate}, {level}"
    if row.figures is None:
        return f"{place}: {row.problem}"
    parts: Sequence[tuple[str, Figures]] = list(row.parts.items()) or [("", row.figures)]
    texts = [f"{name}{' ' * bool(name)}{one.throughput:.1f} infer/s, p99 {one.p99_ms:.2f} ms" for name, one in parts]
    failed = f", {row.figures.errors} failed ({row.problem})" if row.figures.errors else ""
    stable = "" if row.figures.stable else ", not stable"
    return f"{place}: {'; '.join(texts)}{failed}{stable}"
