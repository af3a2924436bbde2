"""World: the whole server over memory, put together and stopped in the order of `tpy.assembly.server`."""

from __future__ import annotations

import io
import logging
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from tests.simulation.backend import BACKEND, SimulatedBackend
from tests.simulation.journal import Journal
from tests.simulation.network import ClientStream, ServerWire, connection
from tests.simulation.witness import Witness
from tests.virtual_executor import VirtualExecutor
from tpy.assembly.diagnostics import Diagnostics
from tpy.assembly.readiness import ReadinessSignal
from tpy.frontends.grpc import GrpcOptions, GrpcServiceOptions, create_handlers
from tpy.frontends.grpc.transport.connection import run_connection
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.http import HttpOptions
from tpy.frontends.http.connection import Http1Connection
from tpy.frontends.http.port import HttpPort
from tpy.frontends.http.serving import create_port
from tpy.frontends.transport import BoundAddress, Ends
from tpy.messages import LogSettings
from tpy.regions import RegionRegistry
from tpy.services import Services
from tpy.state import ModelStateStore
from tpy.telemetry.logs import LogController
from tpy.telemetry.traces.options import TraceOptions
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_control import ControlMode, ControlOptions, ControlPlane, run_control_plane
from tpy_control.offload import inline
from tpy_control.sources.memory import MemorySource
from tpy_data.cache.options import LocalCacheOptions
from tpy_data.engine import DataPlane, DataPlaneOptions, open_data_plane
from tpy_data.schedulers.core.rate_limiter import Supply

EXIT_TIMEOUT_S = 30

_CONFIG = """
backend: "%s"
max_batch_size: %d
input [{ name: "IN" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [2] }]
instance_group { count: %d kind: KIND_CPU rate_limiter { resources [{ name: "R" count: %d }] priority: %d } }
version_policy { %s }
%s
"""

_CONTROLS = """
  control_input [
    { name: "START" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] }] },
    { name: "END" control [{ kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] }] },
    { name: "READY" control [{ kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] }] },
    { name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }
  ] }
"""

_CHAIN = """
platform: "ensemble"
max_batch_size: %d
input [{ name: "IN" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [2] }]
version_policy { %s }
ensemble_scheduling { step [
  { model_name: "first" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "half" } },
  { model_name: "second" model_version: -1 input_map { key: "IN" value: "half" } output_map { key: "OUT" value: "OUT" } }
] }
"""

CHAIN = "chain"
TALK = "talk"
KEPT = "kept"
WORDS = "words"

_SCHEDULERS = {
    "plain": ("",),
    "batch": (
        "dynamic_batching { }",
        "dynamic_batching { max_queue_delay_microseconds: 2000 preferred_batch_size: 4 }",
        "dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
        "dynamic_batching { default_queue_policy { max_queue_size: 3 } }",
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 3000 allow_timeout_override: true } }",
    ),
    "order": ("dynamic_batching { preserve_ordering: true }",),
    WORDS: ("model_transaction_policy { decoupled: true }",),
    TALK: (
        "sequence_batching { direct { }" + _CONTROLS,
        "sequence_batching { direct { max_queue_delay_microseconds: 3000 minimum_slot_utilization: 0.6 }" + _CONTROLS,
        "sequence_batching { oldest { max_candidate_sequences: 3 }" + _CONTROLS,
        "sequence_batching { oldest { max_candidate_sequences: 8 max_queue_delay_microseconds: 2000 }" + _CONTROLS,
    ),
    KEPT: ("response_cache { enable: true }", "response_cache { enable: true } dynamic_batching { }"),
    "first": ("",),
    "second": ("dynamic_batching { }",),
    CHAIN: ("",),
}

MODELS = tuple(_SCHEDULERS)
ECHOES = ("plain", "batch", "order", CHAIN, KEPT)
"""Models that give back what they get, and keep nothing."""


class ModelFiles:
    """The files of one model in the repository. `broken` makes its configuration unreadable."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.rows_max = 8 if name in ("first", "second") else 4
        self.instances = chance.choice((1, 1, 2))
        self.policy = "latest { num_versions: 2 }"
        self.scheduler = chance.choice(_SCHEDULERS[name])
        self.demand = chance.choice((1, 1, 2))
        self.priority = chance.choice((1, 2))
        self.versions = {1: "first"}
        self.broken = False

    def change(self, chance: random.Random, number: int) -> str:
        """Change something; what it was."""
        what = chance.choice(("content", "content", "instances", "rows", "scheduler", "add", "remove", "policy", "broken"))
        if what == "content":
            self.versions[chance.choice(sorted(self.versions))] = f"content {number}"
        elif what == "instances":
            self.instances = chance.choice((1, 2, 3))
        elif what == "rows" and self.name not in ("first", "second"):
            self.rows_max = chance.choice((2, 4, 8))
        elif what == "scheduler":
            self.scheduler = chance.choice(_SCHEDULERS[self.name])
        elif what == "add":
            self.versions[max(self.versions) + 1] = f"new {number}"
        elif what == "remove" and len(self.versions) > 1:
            del self.versions[chance.choice(sorted(self.versions))]
        elif what == "policy":
            self.policy = chance.choice(("latest { num_versions: 1 }", "latest { num_versions: 2 }", "all { }"))
        elif what == "broken":
            self.broken = not self.broken
        return what

    def write(self, source: MemorySource, known: set[int]) -> None:
        """Bring the repository to this. `known` are the versions that it has; kept up to date."""
        location = source.location(self.name)
        text = _CONFIG % (
            BACKEND,
            self.rows_max,
            self.instances,
            self.demand,
            self.priority,
            self.policy,
            self.scheduler,
        )
        if self.name == CHAIN:
            text = _CHAIN % (self.rows_max, self.policy)
        source.write(location, "config.pbtxt", "garbage {{" if self.broken else text)
        for version in sorted(known - self.versions.keys()):
            source.remove(location, str(version))
        for version, content in self.versions.items():
            source.write(location, f"{version}/model.sim", content)
        known.clear()
        known.update(self.versions)


class World:
    """The running server, and the ways into it."""

    def __init__(self, seed: int, journal: Journal) -> None:
        chance = random.Random(f"{seed}/world")
        self.seed = seed
        self.journal = journal
        self.mode = chance.choice((ControlMode.EXPLICIT, ControlMode.EXPLICIT, ControlMode.POLL))
        self._limited = chance.random() < 0.3
        self.source = MemorySource(("repository",))
        self.files = {name: ModelFiles(name, chance) for name in MODELS}
        self.stopping = False
        self.jumped_s = -math.inf
        """The time after the clock's last jump."""
        self.store: ModelStateStore
        self.backend: SimulatedBackend
        self.control: ControlPlane
        self.data: DataPlane
        self.witness: Witness
        self._buffers = random.Random(f"{seed}/network")
        self._stop = trio.Event()
        self._http: HttpPort
        self._grpc: GrpcPort
        self._connections: trio.Nursery
        self._known: dict[str, set[int]] = {name: set() for name in MODELS}
        for name in MODELS:
            self.write(name)

    def write(self, name: str) -> None:
        """Bring the repository's copy of a model up to date."""
        self.files[name].write(self.source, self._known[name])

    def connect_http(self) -> ClientStream:
        """A new connection to the HTTP port."""
        client, server = self._pair()
        self._accept(partial(self._serve_http, server))
        return client

    def connect_grpc(self) -> ClientStream:
        """A new connection to the gRPC port."""
        client, server = self._pair()
        self._accept(partial(self._serve_grpc, server))
        return client

    def _pair(self) -> tuple[ClientStream, ServerWire]:
        sizes = (16, 100, 4096, 65536)
        return connection(to_server=self._buffers.choice(sizes), to_client=self._buffers.choice(sizes))

    def _accept(self, serve: partial[object]) -> None:
        if self.stopping:
            raise ConnectionRefusedError
        self._connections.start_soon(serve)  # type: ignore[arg-type]

    async def _serve_http(self, wire: ServerWire) -> None:
        try:
            await Http1Connection(self._http, wire, Ends()).run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.journal.note("gone")
        finally:
            await wire.aclose()

    async def _serve_grpc(self, wire: ServerWire) -> None:
        try:
            await run_connection(self._grpc, wire, Ends(BoundAddress(host="simulated", port=1)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.journal.note("gone")
        finally:
            await wire.aclose()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The server. Leaving the block stops it; everything must be over within the exit time-out, and a little."""
        clock = TrioClock(trio.lowlevel.current_clock())
        self.store = store = ModelStateStore(clock)
        readiness = ReadinessSignal()
        control_options = ControlOptions(
            repositories=(Path("repository"),),
            mode=self.mode,
            poll_interval_ns=2 * NS_PER_S,
            settle_ns=500 * NS_PER_MS,
            load_models=MODELS if self.mode is ControlMode.EXPLICIT else (),
        )
        data_options = DataPlaneOptions(
            exit_timeout_ns=EXIT_TIMEOUT_S * NS_PER_S,
            cache=LocalCacheOptions(size_bytes=1500),
            rate_limit=Supply() if self._limited else None,
        )
        with trio.CancelScope() as everything:
            async with trio.open_nursery() as threads:
                self.backend = SimulatedBackend(self.seed, self.journal, threads)
                executor = VirtualExecutor(threads, self.backend.latency_ns)
                async with trio.open_nursery() as control_nursery:
                    run = partial(
                        run_control_plane,
                        control_options,
                        store,
                        store.desired_writer(),
                        source=self.source,
                        clock=clock,
                        offload=inline,
                    )
                    self.control = await control_nursery.start(run)
                    control_nursery.start_soon(readiness.follow, store)
                    control_nursery.start_soon(self._follow_states)
                    observed = store.observed_writer()
                    async with open_data_plane(
                        data_options, store, observed, self.backend, clock, executor=executor
                    ) as self.data:
                        self.witness = Witness(self.data.inference, self.journal)
                        services = Services(
                            inference=self.witness,
                            repository=self.control,
                            diagnostics=Diagnostics(
                                self.data,
                                LogController(LogSettings(), stream=io.StringIO()),
                                None,
                                TraceOptions(),
                                server_id="simulated",
                            ),
                            shared_memory=RegionRegistry(),
                            readiness=readiness,
                        )
                        async with self._ports(services, clock):
                            await self.control.wait_startup_settled()
                            yield
                            self.journal.note("stop")
                            self.stopping = True
                            everything.deadline = trio.current_time() + EXIT_TIMEOUT_S
                            self.control.stop(ready=not self.data.begin_drain())
                            readiness.notify()
                            self._stop.set()
                    control_nursery.cancel_scope.cancel()
                # What hangs is left behind, as threads are when the process ends.
                threads.cancel_scope.cancel()
        self.journal.note("stopped", "in time" if not everything.cancelled_caught else "at the exit time-out")

    @asynccontextmanager
    async def _ports(self, services: Services, clock: TrioClock) -> AsyncIterator[None]:
        self._http = create_port(HttpOptions(drain_timeout_s=EXIT_TIMEOUT_S), services, clock)
        assert self._http.application is not None
        self._http.application.load()  # virtual time waits for no thread
        async with trio.open_nursery() as calls:
            handlers = create_handlers(GrpcServiceOptions(), services, clock, nursery=calls, stop=self._stop)
            self._grpc = GrpcPort(GrpcOptions(drain_timeout_s=EXIT_TIMEOUT_S), handlers, clock)
            async with trio.open_nursery() as self._connections:
                yield
                self._connections.cancel_scope.deadline = trio.current_time() + EXIT_TIMEOUT_S
                self._http.begin_drain()
                self._grpc.begin_drain()
            calls.cancel_scope.cancel()
        if self._http.connections or self._grpc.connections:
            self.journal.broken("a port still knows connections after its end")

    async def _follow_states(self) -> None:
        """Write what the store says, whenever it says something new."""
        told: dict[object, object] = {}
        async for snapshot in self.store.watch():
            now = {key: entry.state.value for key, entry in snapshot.observed.items()}
            for key, state in now.items():
                if told.get(key) != state:
                    self.journal.note("state", key.model, key.version, key.generation, state)
            told = dict(now)


logging.getLogger("tpy_data").addHandler(logging.NullHandler())
