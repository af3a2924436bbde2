"""The whole server. Its nursery tree, outermost first; it ends from the inside out:

    run_server
    +-- control_nursery     cancelled last. In it side by side:
        |                     starting ports: answer health checks until the ports are open (assembly/frontends.py)
        |                     control plane: run_control_plane watches repositories, writes what is desired
        |                     readiness: tells frontends when readiness may have changed; the audit log; the deadline of answers
        +-- data plane      open_data_plane: one nursery for all model versions; leaving it finishes requests and unloads
            +-- machine     samples CPU, memory and GPUs for the metrics; watches memory
                +-- ports   of all frontends (assembly/frontends.py); they open when the models of the start have settled, as
                            Triton's, or before, with --serve-while-loading

A stop (Ctrl-C, SIGTERM, a failed start) sets `Stop.asked`; everything after that is leaving these blocks, under one deadline:
what is not answered when the exit time-out is over is refused, and a moment later everything is cut off. Models serve
until the ports have drained, so that who has a connection is not refused. Before all that, with --exit-delay-secs, the server
serves on and is only not ready, until balancers have noticed. The ports stay open as long as sequences live whose
next requests may come through them; the server is then not ready, and begins no sequence.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from tpy import usage_data
from tpy.assembly.announcement import failures, log_tables, started
from tpy.assembly.diagnostics import Diagnostics
from tpy.assembly.frontends import Ports, Sockets, check_ports, open_ports, open_starting_ports
from tpy.assembly.metrics_page import MetricsPage
from tpy.assembly.options import BackendOptions, ServerOptions
from tpy.assembly.readiness import ReadinessSignal
from tpy.assembly.repository import Repository
from tpy.clock import Clock, SystemClock
from tpy.devices import NO_DEVICES, Devices
from tpy.frontends.transport import BoundAddress
from tpy.limits import ANSWERS_STOP_S, SEQUENCES_STOP_RESERVE_S
from tpy.observers import RequestObservers
from tpy.refusals import Refusals
from tpy.regions import RegionRegistry
from tpy.services import NoTraces, Services
from tpy.state import ModelStateStore, ObservedWriter
from tpy.telemetry.access_log import AccessLog, access_log
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.telemetry.logs import LogController
from tpy.units import NS_PER_S
from tpy_control import BACKENDS_FOLDER, ControlMode, ControlPlane, StartupReport, run_control_plane
from tpy_data.engine import DataPlane, DataPlaneOptions, open_data_plane
from tpy_data.engine.loading.placing import Machine
from tpy_data.gpus import NO_GPUS, GpuInventory
from tpy_data.registry import BackendRegistry

if TYPE_CHECKING:
    from tpy.assembly.auditing import Auditing
    from tpy.recording.recorder import Recorder
    from tpy.telemetry.traces.tracer import Tracer
    from tpy.tenants import TenantsConfig
    from tpy_data.engine.rollouts.kept import KeptRollouts

_log = logging.getLogger(__name__)

_LEVELS = {"verbose": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


_LOAD_FAILED = "models failed to load"

Announce = Callable[[str], None]
"""Takes text that people are to see at the start on standard error, also when the log goes elsewhere."""

Opened = Callable[[Mapping[str, BoundAddress]], None]
"""Takes the addresses of the ports while the models of the start load."""


class Running(NamedTuple):
    """A server that serves: the addresses of its ports by name ("HTTP", "gRPC", "metrics"), and what they ask, for a program that
    has the server in it."""

    addresses: dict[str, BoundAddress]
    services: Services


class Outcome(enum.Enum):
    """The end of a server; the value is the process's exit code."""

    STOPPED = 0
    FAILED = 1
    """Models failed to load and --exit-on-error is set, or the exit time-out ran out."""


class Stop:
    """Asks a running server to stop, from anywhere on its Trio thread."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.reason = ""

    def ask(self, reason: str) -> None:
        """Stop in order. Only the first reason counts."""
        if not self.asked.is_set():
            self.reason = reason
            self.asked.set()


async def run_server(
    options: ServerOptions,
    *,
    logs: LogController,
    announce: Announce,
    stop: Stop,
    gpus: GpuInventory = NO_GPUS,
    devices: Devices = NO_DEVICES,
    clock: Clock | None = None,
    custom_metrics: CustomMetrics | None = None,
    opened: Opened = lambda addresses: None,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> Outcome:
    """Serve until `stop` is asked. Started when the models that load at the start have settled. Raises TpyError (inside exception
    groups) when a repository cannot be read or a port not be bound. `custom_metrics` has those of a program beside those of
    models. `opened` is called with --serve-while-loading.
    """
    if options.allow_usage_data:
        usage_data.allow()
    else:
        usage_data.send_none()
    await check_ports(options)
    clock = clock or SystemClock()
    readiness = ReadinessSignal()
    store = ModelStateStore(clock)
    observed = store.observed_writer()
    rollouts = await _kept_rollouts(options, observed)
    registry = _registry(options)
    observers = RequestObservers()
    outcome = Outcome.STOPPED
    with (
        access_log(options.access_log) as log_of_requests,
        _auditing(options, clock) as audit,
        _tracing(options) as tracer,
        _recording(options, clock) as recorder,
        trio.CancelScope() as everything,
    ):
        if tracer is not None:
            observers.add(tracer)
        if recorder is not None:
            observers.add(recorder)
        if log_of_requests is not None:
            observers.add(log_of_requests)
        async with trio.open_nursery() as control_nursery, open_starting_ports(options, clock, control_nursery) as starting:
            control = await _start_control(options, store, clock, stop, control_nursery)
            if control is not None:
                plane = _open_data_plane(
                    options, rollouts, gpus, devices, store, observed, registry, clock, observers, custom_metrics
                )
                async with plane as data:
                    data.use_repository(control if audit is None else audit.loading(control))
                    refusals = Refusals()
                    lost_lines = partial(_dropped_lines, logs, log_of_requests, audit)
                    metrics = MetricsPage(options, data, gpus, devices, control.metrics, refusals, lost_lines)
                    if not control.server_live():
                        data.refuse_everything()
                    services = Services(
                        inference=data.inference,
                        repository=Repository(control, data),
                        diagnostics=Diagnostics(data, logs, tracer, options.trace, server_id=options.server_id),
                        shared_memory=RegionRegistry(devices, enabled=options.allow_client_shm),
                        readiness=readiness,
                        deliveries=data.deliveries,
                        metrics=metrics,
                        observers=observers,
                        registration=control,
                        recordings=recorder,
                        log=logs.tail,
                        refusals=refusals,
                        traces=NoTraces() if tracer is None else tracer,
                        checks=control,
                    )
                    audited = services if audit is None else audit.around(services)
                    if audit is not None:
                        data.rollouts.on_decision = audit.note_rollout
                        control_nursery.start_soon(
                            partial(audit.follow, store, rejections=options.control.mode is not ControlMode.EXPLICIT)
                        )
                    control_nursery.start_soon(readiness.follow, store)
                    closing_ports = trio.Event()

                    def begin_stop() -> float:
                        exit_s = trio.current_time() + options.exit_timeout_s
                        everything.deadline = exit_s + ANSWERS_STOP_S
                        if audit is not None:
                            audit.note_stop(stop.reason)
                        _begin_stop(control, data, readiness, stop.reason)
                        return exit_s

                    wait_loaded = partial(_wait_loaded, options, control, registry, stop, logs, announce)
                    if not options.serve_while_loading:
                        outcome = await _loaded_or_stop(wait_loaded, stop)
                    if not stop.asked.is_set():
                        listening = _frontends(
                            options, services, audited, metrics, clock, starting.sockets, stop=closing_ports, give_up=stop.asked
                        )
                        async with listening as ports:
                            starting.stop.set()
                            await _publish(ports, logs, announce, stop)
                            if options.serve_while_loading:
                                opened(ports.addresses)
                                outcome = await _loaded_or_stop(wait_loaded, stop)
                            if not stop.asked.is_set():
                                task_status.started(Running(ports.addresses, audited))
                            await stop.asked.wait()
                            if options.exit_delay_s and outcome is Outcome.STOPPED:
                                await _wait_noticed(options.exit_delay_s, control, readiness, stop.reason)
                            exit_s = begin_stop()
                            control_nursery.start_soon(_refuse_open_at, exit_s, data)
                            with trio.move_on_at(exit_s - SEQUENCES_STOP_RESERVE_S):
                                await data.wait_sequences_over()
                            closing_ports.set()
                        everything.deadline = max(exit_s, trio.current_time())  # all answers have left
                    else:
                        everything.deadline = begin_stop()
            control_nursery.cancel_scope.cancel()
    with trio.CancelScope(deadline=everything.deadline) as closing:
        if not everything.cancelled_caught:
            # A backend that hangs in its import or in its close is left behind, too.
            await trio.to_thread.run_sync(registry.close, abandon_on_cancel=True)
    if stop.reason == _LOAD_FAILED:
        announce("error: creating server: Internal - failed to load all models")
    if everything.cancelled_caught or closing.cancelled_caught:
        _log.error("Exit timeout expired. Exiting immediately.")
        return Outcome.FAILED
    return outcome


@contextmanager
def _auditing(options: ServerOptions, clock: Clock) -> Iterator[Auditing | None]:
    """The audit log for the length of the block, if there is one. Raises InvalidArgument for a file that cannot be written."""
    if not options.audit_log.file:
        yield None
        return
    from tpy.assembly.auditing import auditing

    with auditing(options.audit_log, clock) as found:
        yield found


@contextmanager
def _tracing(options: ServerOptions) -> Iterator[Tracer | None]:
    """The tracer for the length of the block, if anything can be traced. Raises InvalidArgument for a file that cannot be
    written."""
    if not options.trace.may_trace:
        yield None
        return
    from tpy.telemetry.traces.tracer import tracing  # most servers trace nothing

    with tracing(options.trace) as found:
        yield found


@contextmanager
def _recording(options: ServerOptions, clock: Clock) -> Iterator[Recorder | None]:
    """The recorder for the length of the block, if recordings can be made. Raises InvalidArgument for a folder that cannot be
    written."""
    if not options.recording_directory:
        yield None
        return
    from tpy.recording.recorder import recording  # few servers make any

    with recording(options.recording_directory, clock, options.server_id, options.restricting_headers) as found:
        yield found


def _dropped_lines(logs: LogController, log_of_requests: AccessLog | None, audit: Auditing | None) -> dict[str, int]:
    lost = {"server": logs.dropped, "access": 0 if log_of_requests is None else log_of_requests.dropped}
    return lost if audit is None else {**lost, "audit": audit.dropped}


@asynccontextmanager
async def _unless(asked: trio.Event) -> AsyncIterator[None]:
    """Leaves the block as soon as the shutdown is asked for."""
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await asked.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        yield
        nursery.cancel_scope.cancel()


async def _kept_rollouts(options: ServerOptions, observed: ObservedWriter) -> KeptRollouts | None:
    """Read what was decided of rollouts before. The versions that answer are written to the store before the first look at the
    repositories: a newer one must not take their place. Raises Unavailable for a file that cannot be read."""
    if options.rollout_file is None:
        return None
    from tpy_data.engine.rollouts.kept import read_kept  # few servers keep any

    kept = await trio.to_thread.run_sync(read_kept, options.rollout_file)
    for model, version in kept.answering(namespacing=options.control.namespacing).items():
        observed.answer(model, version)
    return kept


async def _start_control(
    options: ServerOptions, store: ModelStateStore, clock: Clock, stop: Stop, nursery: trio.Nursery
) -> ControlPlane | None:
    """The control plane, after its first look; None when the server was stopped first: a repository that hangs keeps nobody."""
    run = partial(run_control_plane, options.control, store, store.desired_writer(), clock=clock)
    begun: list[ControlPlane] = []
    async with _unless(stop.asked):
        begun.append(await nursery.start(run))
    return begun[0] if begun else None


async def _publish(ports: Ports, logs: LogController, announce: Announce, stop: Stop) -> None:
    """Wait until the ports answer, and say where they are, unless the shutdown is asked for."""
    async with _unless(stop.asked):
        await ports.publish()
        for name, address in ports.addresses.items():
            _log.info("%s", started(name, address))
            if not logs.reaches_terminal:
                announce(started(name, address))


async def _wait_noticed(delay_s: float, control: ControlPlane, readiness: ReadinessSignal, reason: str) -> None:
    """Serve as before, but say that the server is not ready, until balancers have noticed it."""
    context = {"reason": reason, "delay_s": f"{delay_s:g}"}
    _log.info("not ready any more (%(reason)s); requests are served for another %(delay_s)s s (--exit-delay-secs)", context)
    control.withdraw()
    readiness.notify()
    await trio.sleep(delay_s)


def _begin_stop(control: ControlPlane, data: DataPlane, readiness: ReadinessSignal, reason: str) -> None:
    _log.info("stopping (%(reason)s)", {"reason": reason})
    _log.info("Waiting for in-flight requests to complete.")
    # While sequences live the ports stay open, and balancers are to send nobody new. Else they close now: what still asks has a
    # connection, is served as before, and need not hear that the server is not ready.
    control.stop(ready=not data.begin_drain())
    readiness.notify()


async def _refuse_open_at(exit_s: float, data: DataPlane) -> None:
    """Have requests that a hanging backend, or a worker that was stopped, would keep for ever answered before the server goes.
    Until requests in flight are over the log says each second, in Triton's words, for how many versions it waits."""
    while (left_s := exit_s - trio.current_time()) > 0:
        found = data.versions_in_flight()
        _log.info(
            "Timeout %(left_s)d: Found %(versions)d model versions that have in-flight inferences",
            {"left_s": round(left_s), "versions": found},
        )
        if not found:
            break
        await trio.sleep(min(1.0, left_s))
    await trio.sleep_until(exit_s)
    data.refuse_open()


async def _wait_loaded(
    options: ServerOptions, control: ControlPlane, registry: BackendRegistry, stop: Stop, logs: LogController, announce: Announce
) -> bool:
    """Wait until the models of the start have settled and show the tables; false when the server is not to go on."""
    settled: list[StartupReport] = []
    async with _unless(stop.asked):
        settled.append(await control.wait_startup_settled())
    if not settled or stop.asked.is_set():
        return False
    report = settled[0]
    log_tables(options, registry, report.entries)
    for warning in options.warnings:
        _log.warning("%s", warning)
    if report.failed and options.exit_on_error:
        if not logs.reaches_terminal:
            for line in failures(report.failed):
                announce(f"error: model {line}")
        return False
    return True


async def _loaded_or_stop(wait_loaded: Callable[[], Awaitable[bool]], stop: Stop) -> Outcome:
    """Wait for the models of the start. Asks for the shutdown where the server is not to go on without some."""
    if await wait_loaded() or stop.asked.is_set():
        return Outcome.STOPPED
    stop.ask(_LOAD_FAILED)
    return Outcome.FAILED


@asynccontextmanager
async def _frontends(
    options: ServerOptions,
    services: Services,
    audited: Services,
    metrics: MetricsPage,
    clock: Clock,
    sockets: Sockets,
    *,
    stop: trio.Event,
    give_up: trio.Event,
) -> AsyncIterator[Ports]:
    """The ports, and the sampling of the machine. Leaving the block waits until each port has drained."""
    async with trio.open_nursery() as sampling:
        sampling.start_soon(metrics.sample)
        async with open_ports(options, services, audited, clock, sockets=sockets, stop=stop, give_up=give_up) as ports:
            yield ports
        sampling.cancel_scope.cancel()


def _check_tenants(options: ServerOptions) -> Callable[[TenantsConfig], None]:
    """Says what is wrong with tenants whose keys and tokens --auth-config does not have."""

    def check(config: TenantsConfig) -> None:
        from tpy.frontends.access.tenancy import check_tenants  # most servers have no tenants

        check_tenants(options.tenants_file, options.auth_file, config)

    return check


def _open_data_plane(
    options: ServerOptions,
    rollouts: KeptRollouts | None,
    gpus: GpuInventory,
    devices: Devices,
    store: ModelStateStore,
    observed: ObservedWriter,
    registry: BackendRegistry,
    clock: Clock,
    observers: RequestObservers,
    custom_metrics: CustomMetrics | None,
) -> AbstractAsyncContextManager[DataPlane]:
    found = DataPlaneOptions(
        load_threads_max=options.load_threads,
        load_retries=options.load_retries,
        exit_timeout_ns=round(options.exit_timeout_s * NS_PER_S),
        machine=Machine(
            inventory=gpus,
            compute_capability_min=options.compute_capability_min,
            host_policies=options.host_policies,
            gpu_limits=options.gpu_limits,
        ),
        server_id=options.server_id,
        model_namespacing=options.control.namespacing,
        cache=options.cache,
        rate_limit=options.rate_limit,
        rollouts=rollouts,
        tenants_file=options.tenants_file,
        check_tenants=_check_tenants(options),
        curves_file=options.curves_file,
        memory_budget=options.memory_budget,
        start_delay=options.start_delay,
        request_timeout=options.request_timeout,
        restarts=options.restarts,
        latencies=options.metrics.latencies,
    )
    return open_data_plane(
        found,
        store,
        observed,
        registry,
        clock,
        devices=devices,
        observers=observers,
        custom_metrics=custom_metrics,
    )


def _registry(options: ServerOptions) -> BackendRegistry:
    backends: BackendOptions = options.backends
    return BackendRegistry(
        backend_directory=backends.directory,
        repository_backend_directories=[folder / BACKENDS_FOLDER for folder in options.control.folders],
        backend_config=backends.config,
        global_config=backends.config_of_all,
        log=_log_from_thread,
    )


def _log_from_thread(level: str, message: str) -> None:
    """For backends; logging is safe in any thread."""
    extra = {"verbose": 1} if level == "verbose" else None
    _log.log(_LEVELS.get(level, logging.INFO), "%s", message, extra=extra)
