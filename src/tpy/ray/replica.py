"""Replica: the deployment. A whole server without ports, which Serve's proxies ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import ray
import trio
from quart_trio import QuartTrio
from ray import serve

from tpy.assembly import ServerOptions
from tpy.cli.flags import FLAG_BY_NAME
from tpy.clock import Clock, SystemClock
from tpy.embedded.hosted_engine import HostedEngine
from tpy.embedded.model import RequestOptions
from tpy.embedded.server import Server
from tpy.errors import InvalidArgument, InvariantViolation, TpyError, Unavailable
from tpy.frontends.grpc import GrpcFrontendOptions, create_handlers
from tpy.frontends.http.app import create_app
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.serving import create_endpoint
from tpy.messages import IndexEntry, ModelState, ModelStatistics
from tpy.ray.arguments import Arguments
from tpy.ray.calls import Answer, answer_of, refusal_of, with_called
from tpy.ray.core.changes import Action, Models
from tpy.ray.exported import ExportedMetrics
from tpy.ray.grpc import GrpcBridge, Reply, methods
from tpy.ray.http import HttpBridge
from tpy.ray.replicas import ChangeOutcome, Replicas
from tpy.ray.services import of_all_replicas, perform
from tpy.services import Services

T = TypeVar("T")


class _Server(Server):
    """A server whose frontends are not at ports. `frontends` has their options; `view` the repositories of one that calls other
    applications' models, and goes with it; `engine` is it as it runs."""

    frontends: Mapping[str, object]
    view: TemporaryDirectory[str]
    loop: asyncio.AbstractEventLoop

    engine: HostedEngine

    def _open_engine(self, options: ServerOptions) -> HostedEngine:
        self.frontends = options.frontends
        self.engine = HostedEngine(msgspec.structs.replace(options, frontends={}, frontend_processes=0), self.loop)
        return self.engine


class Replica:
    """One replica. Serve calls its methods by their names; those of the gRPC API are added below."""

    async def __init__(self, arguments: Arguments) -> None:  # type: ignore[misc]  # Serve awaits it
        context = serve.get_replica_context()
        self._loop = asyncio.get_running_loop()
        # In a thread: models that are warmed up call other applications' models, through this loop.
        self._server = await asyncio.to_thread(start, arguments, context.replica_tag, self._loop)
        self._engine = self._server.engine
        self._model = arguments.model
        self._replicas = Replicas(context.replica_tag, arguments.applications, self._perform)
        self._nursery_closed = trio.Event()
        await self._on_server(self._open)
        self._metrics = ExportedMetrics()
        self._exporting: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        """Open the frontends: their tasks have a nursery in a system task, which ends with the server."""
        started: trio.Event = trio.Event()

        async def hold() -> None:
            with trio.CancelScope() as self._frontends:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    started.set()
                    await trio.sleep_forever()

        trio.lowlevel.spawn_system_task(hold)
        await started.wait()
        services = of_all_replicas(self._engine.services, self._replicas, self._loop)
        clock = SystemClock()
        http, grpc = self._server.frontends["http"], self._server.frontends["grpc"]
        if not isinstance(http, HttpOptions) or not isinstance(grpc, GrpcFrontendOptions):
            raise InvalidArgument("HTTP and gRPC are Ray's: allow_http and allow_grpc cannot be switched off")
        endpoint = create_endpoint(http, services, clock)
        app = create_app(endpoint, page=http.page, stopping=self._nursery_closed)
        handlers = create_handlers(grpc.services, services, clock, nursery=self._nursery, stop=self._nursery_closed)
        self._http = HttpBridge(self._engine, endpoint, app, self._nursery, self._openai(services, clock))
        self._grpc = GrpcBridge(self._engine, handlers, self._nursery)

    def _openai(self, services: Services, clock: Clock) -> QuartTrio | None:
        """The routes of OpenAI's API, as at its own port; None where they are not allowed."""
        options = self._server.frontends.get("openai")
        if options is None:
            return None
        from tpy_platforms.openai import frontend

        if not isinstance(options, frontend.OpenAiOptions):
            raise InvariantViolation(f"the options of the OpenAI frontend are {options!r}")
        return frontend.create_app(create_endpoint(options, services, clock), options=options)

    def __serve_build_asgi_app__(self) -> HttpBridge:  # Serve's name
        """The ASGI application (Serve asks for it once)."""
        return self._http

    async def reconfigure(self, user_config: Mapping[str, Any] | None) -> None:
        """Serve calls this at the start of a replica, and whenever the deployment's `user_config` changes. `models` there are the
        models to be loaded."""
        names = (user_config or {}).get("models")
        await self._replicas.sync()
        if names is not None:
            await self._replicas.settle(Models(tuple(names)))
        await self._replicas.configured()
        await self._replicas.wait_applied()
        if self._exporting is None:
            self._exporting = asyncio.create_task(self._metrics.export_forever(self._metrics_page))

    async def check_health(self) -> None:
        """Raises where Serve is to replace the replica: its server has stopped, or a model is gone that no change has failed for.
        A model that loads is not gone."""
        index, ready = await self._on_server(self._local_health)
        await self._replicas.sync()
        if not ready and (gone := _gone(index, self._replicas.failed)):
            raise Unavailable(f"not ready: {gone}")

    async def _local_health(self) -> tuple[Sequence[IndexEntry], bool]:
        repository = self._engine.services.repository
        return await repository.index(), repository.server_ready()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The numbers that the policy `tpy.ray.ByLoad` decides by."""
        statistics = await self._on_server(self._engine.services.diagnostics.statistics)
        return {"tpy_load": max((each.load for each in statistics if each.load is not None), default=0.0)}

    async def __del__(self) -> None:
        if self._exporting is not None:
            self._exporting.cancel()
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._engine.soon(self._nursery_closed.set)
        try:
            self._server.stop()
            self._server.view.cleanup()
        finally:
            self._engine.soon(self._frontends.cancel)

    # What replicas ask of each other

    async def applied(self, subject: str) -> ChangeOutcome:
        """The outcome of the newest change of a subject on this replica."""
        return await self._replicas.applied(subject)

    async def infer_arrays(self, inputs: Mapping[str, Any], options: RequestOptions) -> Answer:
        """The only response of the application's model, for one of another application that calls it."""
        try:
            return answer_of(await self._server.model(self._model).infer_async(inputs, **options))
        except TpyError as error:
            return refusal_of(error)

    async def stream_arrays(self, inputs: Mapping[str, Any], options: RequestOptions) -> AsyncIterator[Answer]:
        """The responses of the application's model, as many as it sends."""
        try:
            async with aclosing(self._server.model(self._model).stream_async(inputs, **options)) as responses:
                async for response in responses:
                    yield answer_of(response)
        except TpyError as error:
            yield refusal_of(error)

    async def change(self, action: Action) -> None:
        """Have all replicas perform an action."""
        await self._replicas.change(action)

    async def whole_index(self) -> Sequence[IndexEntry]:
        """The index of all replicas."""
        return await self._replicas.index((await self.local_index())[1])

    async def whole_statistics(self, model: str, version: int | None) -> Sequence[ModelStatistics]:
        """The statistics of all replicas."""
        return await self._replicas.statistics(model, version, (await self.local_statistics(model, version))[1])

    async def local_index(self) -> tuple[str, Sequence[IndexEntry]]:
        """The index of this replica."""
        return self._replicas.name, await self._on_server(self._engine.services.repository.index)

    async def local_statistics(self, model: str, version: int | None) -> tuple[str, Sequence[ModelStatistics] | TpyError]:
        """The statistics of this replica."""
        try:
            found = await self._on_server(partial(self._engine.services.diagnostics.statistics, model, version))
        except TpyError as error:
            return self._replicas.name, error.with_traceback(None)
        return self._replicas.name, found

    async def _perform(self, action: Action) -> None:
        await self._on_server(partial(perform, self._engine.services, action))

    async def _metrics_page(self) -> str:
        metrics = self._engine.services.metrics
        return "" if metrics is None else (await self._on_server(metrics.page)).decode()

    async def _on_server(self, function: Callable[[], Awaitable[T]]) -> T:
        return await self._engine.ask(function)


def _unary_method(path: str) -> Callable[..., Awaitable[Reply]]:
    async def method(self: Replica, request: bytes, grpc_context: Any) -> Reply:
        return await self._grpc.unary(path, request, grpc_context)

    return method


def _stream_method(path: str) -> Callable[..., AsyncIterator[Reply]]:
    async def method(self: Replica, request: AsyncIterator[bytes], grpc_context: Any) -> AsyncIterator[Reply]:
        async for reply in self._grpc.stream(path, request, grpc_context):
            yield reply

    return method


for _name, (_path, _is_stream) in methods().items():
    setattr(Replica, _name, _stream_method(_path) if _is_stream else _unary_method(_path))


def start(arguments: Arguments, replica: str, loop: asyncio.AbstractEventLoop) -> _Server:
    """Start the server of a replica; `loop` is Ray's, for calls of other applications' models. Raises Unavailable with what
    prevents it, and where."""
    node = ray.util.get_node_ip_address()
    view = TemporaryDirectory(prefix="tpy-ray-")
    try:
        if arguments.calls:
            seen = with_called(Path(view.name), arguments.repository, arguments.calls, loop)
            arguments = msgspec.structs.replace(arguments, repository=seen)
        server = server_of(arguments)
        server.view = view
        server.loop = loop
        server.start()
    except TpyError as error:
        view.cleanup()
        raise Unavailable(f"replica {replica} on the node {node} does not start: {error.message}") from None
    return server


def server_of(arguments: Arguments) -> _Server:
    """The server that these arguments ask for, not started. Raises InvalidArgument for one that is not a flag of tpy serve."""
    unknown = [name for name in arguments.flags if name.replace("_", "-") not in FLAG_BY_NAME]
    if unknown:
        raise InvalidArgument(f"tpy.ray got an unknown argument, which is not a flag of tpy serve either: '{unknown[0]}'")
    flags: dict[str, Any] = {"allow_http": True, "allow_grpc": True, **arguments.flags}
    if arguments.model:
        flags["load_model"] = (arguments.model, *arguments.beside, *arguments.calls)
    elif arguments.models:
        flags["load_model"] = arguments.models
    elif arguments.applications:
        flags["load_model"] = ()
    return _Server(arguments.repository, **flags)


def _gone(index: Sequence[IndexEntry], failed: Mapping[str, TpyError]) -> str:
    """The models that are gone, with the reasons; "" for none."""
    ready = {entry.name for entry in index if entry.state in (ModelState.READY, ModelState.LOADING)}
    return "; ".join(
        f"model '{entry.name}' version {entry.version}: {entry.reason}"
        for entry in index
        if entry.state is ModelState.UNAVAILABLE
        and entry.reason != "unloaded"
        and entry.name not in ready
        and f"model {entry.name}" not in failed
    )
