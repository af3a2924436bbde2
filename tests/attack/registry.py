"""The attacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import (
    browsers,
    chats,
    costs,
    descriptions,
    faults,
    memory,
    messages,
    outages,
    plugins,
    repositories,
    segments,
    strings,
    workers,
)
from .arena import Outcome

_STARTS_MS = 250.0
"""Workers start meanwhile, on the same two cores."""

_COPIES_MS = 250.0
"""Worker and server copy hundreds of megabytes meanwhile, on the same two cores."""


class Attack(NamedTuple):
    """One attack, and what it may cost beside what the machine costs without it."""

    name: str
    run: Callable[[Path], Outcome]
    quick: bool = False
    """True if it is part of `make test`."""

    live_ms_max: float = 100.0
    kept_mib_max: float = 50.0
    peak_mib_max: float = 1000.0


def _bomb(name: str, *, field: str, megabytes: int, quick: bool = False, gzip: bool = False, stream: bool = False) -> Attack:
    run = partial(messages.count_bomb, field=field, megabytes=megabytes, gzip=gzip, stream=stream)
    return Attack(name, run, quick, live_ms_max=50, peak_mib_max=300)


def _short_of_memory(name: str, *, worker: bool) -> Attack:
    run = partial(memory.large_requests, worker=worker)
    return Attack(name, run, live_ms_max=1000.0, kept_mib_max=1000.0, peak_mib_max=1600.0)


BASELINE = Attack("none", faults.nothing, live_ms_max=float("inf"))

ATTACKS = (
    _bomb("grpc-raw-1", field="raw_input_contents", megabytes=1),
    _bomb("grpc-raw-8", field="raw_input_contents", megabytes=8),
    _bomb("grpc-raw-20", field="raw_input_contents", megabytes=20, quick=True),
    _bomb("grpc-inputs-20", field="inputs", megabytes=20),
    _bomb("grpc-outputs-20", field="outputs", megabytes=20),
    _bomb("grpc-raw-8-gzip", field="raw_input_contents", megabytes=8, gzip=True),
    _bomb("grpc-inputs-20-gzip", field="inputs", megabytes=20, gzip=True),
    _bomb("grpc-stream-raw-8", field="raw_input_contents", megabytes=8, stream=True),
    _bomb("grpc-stream-raw-8-gzip", field="raw_input_contents", megabytes=8, gzip=True, stream=True, quick=True),
    Attack("json-15-refused", partial(messages.refused_documents, megabytes=15, times=50)),
    Attack("json-60-three", partial(messages.refused_documents, megabytes=60, times=1, clients=3)),
    Attack("worker-idle-kill", partial(workers.kill_idle, model="copy", instances=2), quick=True, live_ms_max=_STARTS_MS),
    Attack("worker-idle-kill-decoupled", partial(workers.kill_idle, model="count", instances=1), live_ms_max=_STARTS_MS),
    Attack("worker-forks", partial(workers.fork_in_execute, requests=1600), live_ms_max=_STARTS_MS),
    Attack("worker-stopped-at-shutdown", workers.stopped_at_shutdown),
    Attack("log-unread", partial(outages.unread_log, flag="--log-file"), quick=True),
    Attack("access-log-unread", partial(outages.unread_log, flag="--access-log")),
    Attack("worker-kills", partial(outages.killed_workers, frontends=0), quick=True, live_ms_max=_STARTS_MS),
    Attack("worker-kills-frontends", partial(outages.killed_workers, frontends=2), live_ms_max=_STARTS_MS),
    Attack("segment-sparse", partial(segments.sparse_segment, frontends=0), quick=True, kept_mib_max=100),
    Attack("segment-sparse-frontends", partial(segments.sparse_segment, frontends=2), kept_mib_max=100),
    Attack("folder-nested", partial(repositories.hostile_folder, kind="nested")),
    Attack("folder-link-bomb", partial(repositories.hostile_folder, kind="link_bomb"), quick=True),
    Attack("folder-proc-link", partial(repositories.hostile_folder, kind="proc_link")),
    Attack("labels-fifo", partial(repositories.special_file, device=False, warm_up=False), quick=True),
    Attack("labels-zero", partial(repositories.special_file, device=True, warm_up=False)),
    Attack("warm-up-fifo", partial(repositories.special_file, device=False, warm_up=True)),
    Attack("warm-up-zero", partial(repositories.special_file, device=True, warm_up=True)),
    _short_of_memory("no-memory", worker=False),
    _short_of_memory("no-memory-worker", worker=True),
    Attack("no-descriptors", faults.no_descriptors),
    Attack("update-while-decoding", faults.update_while_decoding, kept_mib_max=200),
    Attack("redis-silent", partial(faults.strange_redis, poisoned=False)),
    Attack("redis-poisoned", partial(faults.strange_redis, poisoned=True)),
    Attack("tls-half", faults.half_handshakes, quick=True, live_ms_max=700, kept_mib_max=300),
    Attack("tls-stalled", faults.stalled_handshakes),
    Attack("page-foreign-origin", partial(browsers.page_loads_model, rebound=False), live_ms_max=_STARTS_MS),
    Attack("page-rebound-host", partial(browsers.page_loads_model, rebound=True), quick=True, live_ms_max=_STARTS_MS),
    Attack("openai-settings", partial(costs.openai, kind="settings"), quick=True, peak_mib_max=300),
    Attack("openai-members", partial(costs.openai, kind="members"), peak_mib_max=300),
    Attack("openai-nested", partial(costs.openai, kind="nested"), peak_mib_max=300),
    Attack("large-configuration", descriptions.large_configuration, quick=True),
    Attack("generate-long-string", partial(costs.long_string, megabytes=60, text="é"), live_ms_max=80, kept_mib_max=250),
    Attack(
        "generate-long-string-frontends",
        partial(costs.long_string, megabytes=60, text="é", frontends=1),
        live_ms_max=80,
        kept_mib_max=250,
    ),
    Attack("generate-escapes", partial(costs.long_string, megabytes=10, text="\1"), live_ms_max=50, kept_mib_max=100),
    Attack("sagemaker-load", partial(costs.sagemaker_load, megabytes=60), live_ms_max=50, peak_mib_max=150),
    Attack("generate-stream-unread", partial(strings.unread_events, clients=4), quick=True, kept_mib_max=150, peak_mib_max=150),
    Attack(
        "generate-stream-unread-frontends",
        partial(strings.unread_events, clients=4, frontends=1),
        live_ms_max=_COPIES_MS,
        kept_mib_max=150,
        peak_mib_max=150,
    ),
    Attack(
        "grpc-stream-unread",
        partial(strings.unread_answers, requests=2000),
        live_ms_max=_COPIES_MS,
        kept_mib_max=220,
        peak_mib_max=220,
    ),
    Attack("trace-tensors", strings.traced_tensors, quick=True, live_ms_max=_COPIES_MS, kept_mib_max=120, peak_mib_max=250),
    Attack("credentials-kept", partial(strings.kept_credentials, frontends=0)),
    Attack("credentials-kept-frontends", partial(strings.kept_credentials, frontends=1)),
    Attack("agent-floods", partial(plugins.hostile_agent, kind="floods"), quick=True, live_ms_max=_STARTS_MS),
    Attack("agent-closes", partial(plugins.hostile_agent, kind="closes"), live_ms_max=_STARTS_MS),
    Attack("agent-kills-group", partial(plugins.hostile_agent, kind="group"), quick=True, live_ms_max=_STARTS_MS),
    Attack("agent-forks", partial(plugins.hostile_agent, kind="forks"), live_ms_max=_STARTS_MS),
    Attack("agent-moves", partial(plugins.hostile_agent, kind="moves"), live_ms_max=_STARTS_MS),
    Attack("agent-exits", partial(plugins.hostile_agent, kind="exits"), live_ms_max=_STARTS_MS),
    Attack("tokenizer-pipe", chats.tokenizer_pipe, quick=True, live_ms_max=_STARTS_MS),
    Attack("chat-template-endless", chats.endless_template, quick=True, live_ms_max=_STARTS_MS),
    Attack("chat-long-tools", partial(chats.long_chat, member="tools", megabytes=60), live_ms_max=50, kept_mib_max=250),
    Attack(
        "chat-long-messages",
        partial(chats.long_chat, member="messages", megabytes=60, text="é"),
        live_ms_max=50,
        kept_mib_max=250,
        peak_mib_max=500,
    ),
    Attack("metric-labels", partial(faults.metric_labels, labels=20_000)),
)
