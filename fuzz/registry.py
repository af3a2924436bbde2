"""All targets. A new one is added here by hand."""

from __future__ import annotations

from fuzz.auditing import targets as auditing
from fuzz.cache import targets as cache
from fuzz.config import targets as config
from fuzz.control import targets as control
from fuzz.decoupled import targets as decoupled
from fuzz.engine import memory_budget, memory_trend, rollouts
from fuzz.engine import targets as engine
from fuzz.grpc import targets as grpc
from fuzz.hot import targets as hot
from fuzz.http import targets as http
from fuzz.mlflow import targets as mlflow
from fuzz.native import targets as native
from fuzz.openai import targets as openai
from fuzz.python_worker import targets as worker
from fuzz.recording import targets as recording
from fuzz.remote import targets as remote
from fuzz.schedulers import device_targets as devices
from fuzz.schedulers import engine_targets as engines
from fuzz.schedulers import ensemble_targets as ensembles
from fuzz.schedulers import fair_targets as fair
from fuzz.schedulers import length_targets as lengths
from fuzz.schedulers import rate_targets as rates
from fuzz.schedulers import sequence_targets as sequences
from fuzz.schedulers import targets as schedulers
from fuzz.schedulers import tuned_targets as tuned
from fuzz.target import Target
from fuzz.tensorflow_serving import targets as tensorflow_serving

TARGETS: tuple[Target, ...] = (
    schedulers.DEFAULT,
    schedulers.DYNAMIC,
    schedulers.CANARY,
    fair.DEFAULT,
    fair.DYNAMIC,
    fair.WIDE,
    fair.CANARY,
    devices.DEVICES,
    devices.CANARY,
    tuned.TUNED,
    tuned.CANARY,
    lengths.LENGTHS,
    lengths.FAIR,
    lengths.CANARY,
    decoupled.DECOUPLED,
    decoupled.CANARY,
    sequences.DIRECT,
    sequences.OLDEST,
    sequences.CANARY,
    engines.ENGINE,
    engines.CANARY,
    ensembles.GRAPH,
    ensembles.CANARY,
    rates.RATE_LIMITER,
    rates.CANARY,
    cache.RESPONSE_CACHE,
    cache.ENTRY,
    cache.CANARY,
    auditing.LINES,
    auditing.CANARY,
    control.CONTROL,
    control.CANARY,
    control.STORE,
    control.STORE_CANARY,
    control.DEBOUNCE,
    config.DOCUMENTS,
    config.SPOILED,
    config.CANARY,
    http.SOUND,
    http.HOSTILE,
    http.CANARY,
    http.BODIES,
    http.RESPONSES,
    http.PIECES,
    http.REGIONS,
    http.REGIONS_CANARY,
    grpc.HOSTILE,
    grpc.CONVERSATION,
    grpc.FRAMING,
    grpc.FRAMING_CANARY,
    grpc.REQUESTS,
    grpc.RESPONSES,
    grpc.REGIONS,
    tensorflow_serving.READING,
    tensorflow_serving.WRITING,
    tensorflow_serving.CANARY,
    worker.FRAMES,
    worker.CANARY,
    worker.TENSORS,
    worker.SESSION,
    worker.LIES,
    worker.WINDOW,
    worker.WINDOW_CANARY,
    memory_budget.MEMORY_BUDGET,
    memory_budget.CANARY,
    memory_trend.MEMORY_TREND,
    memory_trend.CANARY,
    rollouts.ROLLOUT,
    rollouts.CANARY,
    engine.CIRCLES,
    engine.CIRCLES_CANARY,
    engine.DEADLINES,
    engine.DEADLINES_CANARY,
    remote.PROTOCOL,
    remote.HOSTILE,
    remote.CANARY,
    recording.FILE,
    recording.CANARY,
    hot.HEADS,
    hot.HEADS_CANARY,
    hot.FIELDS,
    hot.FIELDS_CANARY,
    hot.REQUESTS,
    hot.RESPONSES,
    hot.MODEL_INFER_REQUESTS,
    hot.MODEL_INFER_WIRE,
    hot.MODEL_INFER_RESPONSES,
    hot.MODEL_INFER_CANARY,
    hot.EXECUTE,
    hot.RESULT,
    hot.CANARY,
    native.HOSTILE,
    native.CANARY,
    mlflow.BODIES,
    mlflow.CANARY,
    openai.TOOL_CALLS,
    openai.CANARY,
)


def target_named(name: str) -> Target | None:
    """The target of that name, or None."""
    return next((target for target in TARGETS if target.name == name), None)
