"""No call that changes something escapes the audit log: every route of every port, every method of gRPC and every method of the
services, from the tables and descriptors, so that new ones are tried, too."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
from quart_trio import QuartTrio

from tests.frontends.applications import applications
from tests.frontends.grpc.fakes import port
from tests.frontends.http.fakes import FakeServices
from tpy import services as all_services
from tpy._proto import POOL, messages
from tpy.auditing import AuditLog, audit_log, audited_services
from tpy.auditing.log import present_action
from tpy.clock import SystemClock
from tpy.errors import InvalidArgument, TpyError
from tpy.frontends.access import AuthOptions
from tpy.frontends.grpc import GrpcServiceOptions
from tpy.frontends.grpc.transport import UnaryHandler
from tpy.frontends.http.quart_bridge import BODY
from tpy.messages import AuditLogOptions, CudaRegistration, LoadRequest, LogSettings, RecordingOptions, RegionKind
from tpy.services import Services
from tpy.units import NS_PER_S

pb = messages("grpc_service.proto")

READING = re.compile(r"POST (/v2/repository(/<repository>)?/(index|models/<model>/check)|/predict)")
"""Calls that are POST and change nothing. The last is Vertex AI's, which refuses changes by its redirects."""

INFERENCE = re.compile(
    r"(POST|PUT) (/v2/models/<model>(/versions/<digits:version>)?/(infer|generate|generate_stream)|/v1/models/<model>:predict"
    r"|/v1/models/<servable:model>(/versions/<digits:version>|/labels/<servable:label>)?:(predict|classify|regress)"
    r"|/v1/(chat/)?completions|/v1/embeddings"
    r"|(/models/<model>(/versions/<digits:version>)?)?/invocations|/models/<name>/invoke|/predictions/<model>(/<release>)?|/wfpredict/<model>)"
)

CHANGING_METHODS = {
    "LoadingService": {"load", "unload"},
    "RegistrationService": {"register", "unregister"},
    "DiagnosticsService": {"rollout", "update_log_settings", "trace_settings"},
    "RecordingService": {"change"},
    "SharedMemoryService": {"register", "unregister"},
}
"""The methods of the services that change what others see."""

OTHER_METHODS = {
    "ResponseSink": {"deliver"},
    "RequestHandle": {"cancel", "pause", "resume"},
    "ResolvedModel": {"submit", "hold", "release"},
    "InferenceService": {"resolve", "ready_versions", "config", "config_forms"},
    "RepositoryService": {"server_live", "server_ready", "model_ready", "index"},
    "ConfigCheckService": {"check_config"},
    "DiagnosticsService": {"server_metadata", "statistics", "counters", "explain", "graph", "log_settings"},
    "RecordingService": {"status"},
    "SharedMemoryService": {"require_enabled"},
    "ReadinessService": {"wait_changed"},
    "MetricsService": {"page", "load", "gpus"},
    "LogService": {"lost", "lines_after"},
    "TraceService": {"recent_after"},
    "ControlAction": {"identified", "begin", "ended", "forget"},
    "AuditService": {"action"},
}
"""Those that change nothing, or only the caller's own request."""


class Registration:
    """Implements tpy.services.RegistrationService."""

    async def register(self, path: str, names: object) -> None:
        return

    def unregister(self, path: str) -> None:
        return


class Audited:
    """Fake services with an audit log in a file."""

    def __init__(self, log: AuditLog, path: Path) -> None:
        services = FakeServices(shared_memory=True)
        services.registration = Registration()
        self.services = audited_services(services, log)
        self._log = log
        self._path = path
        self._seen = 0

    def lines(self) -> list[dict[str, Any]]:
        """The lines since the last look."""
        self._log.flush()
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        new, self._seen = lines[self._seen :], len(lines)
        return new


class SlowCalls(SystemClock):
    """A clock by which each look is a second after the last one."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        self._now_ns += NS_PER_S
        return self._now_ns


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Audited]:
    path = tmp_path / "audit.log"
    with audit_log(AuditLogOptions(file=str(path)), SlowCalls()) as log:
        assert log is not None
        yield Audited(log, path)


async def ask(app: QuartTrio, method: str, path: str, body: bytes = b"{}") -> int:
    """The status of the answer of an application."""
    statuses: list[int] = []
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 8000),
        "extensions": {},
        "state": {BODY: body},
    }

    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in messages:
            return message
        await trio.sleep_forever()
        raise AssertionError

    with trio.CancelScope() as until_answered:

        async def send(event: dict[str, Any]) -> None:
            if event["type"] == "http.response.start":
                statuses.append(event["status"])
                until_answered.cancel()  # some answers have no end

        await app(scope, receive, send)  # type: ignore[arg-type]  # a scope as Hypercorn makes it
    return statuses[0]


def routes(app: QuartTrio) -> Iterator[tuple[str, str, str]]:
    """Method, rule and a path of each route."""
    for rule in app.url_map.iter_rules():
        path = re.sub("<digits:[^>]*>", "1", rule.rule)
        for method in sorted(rule.methods or ()):
            yield method, rule.rule, re.sub("<[^>]*>", "m", path)


async def test_every_route_that_changes_something_has_a_line(audited: Audited) -> None:
    """Whatever it answers: the bodies are wrong ones for most."""
    tried = []
    for name, app in applications(audited.services):
        for method, rule, path in routes(app):
            route = f"{method} {rule}"
            if INFERENCE.fullmatch(route):
                continue
            await ask(app, method, path)
            lines = audited.lines()
            if method in ("GET", "HEAD") or READING.fullmatch(route):
                assert lines == [], f"{name}: {route} changes nothing"
            else:
                assert [(line["route"], line["peer"]) for line in lines] == [(route, "127.0.0.1:5000")], f"{name}: {route}"
                tried.append(route)
    assert len(tried) > 25


async def test_calls_that_are_refused_have_a_line(audited: Audited, tmp_path: Path) -> None:
    (tmp_path / "auth.toml").write_text("")
    auth = AuthOptions(file=str(tmp_path / "auth.toml"), required=True)
    for name, app in applications(audited.services, auth=auth):
        for method, rule, path in routes(app):
            route = f"{method} {rule}"
            if method in ("GET", "HEAD") or READING.fullmatch(route) or INFERENCE.fullmatch(route):
                continue
            assert await ask(app, method, path) == 401
            assert [(line["route"], line["result"]) for line in audited.lines()] == [(route, "UNAUTHENTICATED")], name


def grpc_methods() -> list[str]:
    """The paths of the methods of all services of the port."""
    names = (
        "inference.GRPCInferenceService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "tpy.rollout.v1.RolloutService",
    )
    return [f"/{name}/{method.name}" for name in names for method in POOL.FindServiceByName(name).methods]


GRPC_READING = re.compile(
    r".*/(Server(Live|Ready|Metadata)|Model(Ready|Metadata|Config|Statistics)|RepositoryIndex|.*SharedMemoryStatus"
    r"|Status|Check|Watch|ServerReflectionInfo|Model(Stream)?Infer)"
)


async def test_every_method_that_changes_something_has_a_line(audited: Audited, tmp_path: Path) -> None:
    (tmp_path / "auth.toml").write_text("")
    refusing = GrpcServiceOptions(auth=AuthOptions(file=str(tmp_path / "auth.toml"), required=True))
    tried = []
    for options in (GrpcServiceOptions(), refusing):
        async with port(options, audited.services) as served:
            for path in grpc_methods():
                if GRPC_READING.fullmatch(path):
                    continue
                assert isinstance(served.handlers[path], UnaryHandler), f"{path}: say whether it changes something"
                await served.call(path, b"" if options is refusing else GRPC_BODIES.get(path.rpartition("/")[2], b""))
                found = [(line["route"], line["protocol"], line["peer"]) for line in audited.lines()]
                assert found == [(path, "grpc", "127.0.0.1:1")], path
                tried.append(path)
    assert len(tried) == 22


GRPC_BODIES = {
    "LogSettings": pb.LogSettingsRequest(settings={"log_info": {"bool_param": True}}).SerializeToString(),
    "TraceSetting": pb.TraceSettingRequest(settings={"trace_rate": {"value": ["5"]}}).SerializeToString(),
}
"""Changes of one setting: without any, these calls change nothing."""


async def test_a_question_for_settings_has_none(audited: Audited) -> None:
    async with port(services=audited.services) as served:
        for name in GRPC_BODIES:
            call = await served.call(name)
            assert call.reply_bytes
    assert audited.lines() == []


def test_every_method_of_the_services_is_known() -> None:
    """A new one is either around the log, or in the table above."""
    found = {}
    for name, one in vars(all_services).items():
        if isinstance(one, type) and Protocol in one.__bases__ and one.__module__ == all_services.__name__:
            found[name] = {each for each, value in vars(one).items() if callable(value) and not each.startswith("_")}
    known = {name: CHANGING_METHODS.get(name, set()) | OTHER_METHODS.get(name, set()) for name in found}
    assert found == known


async def test_every_change_of_a_service_has_a_line(audited: Audited) -> None:
    """Also without a frontend: the program that has the server in it, and ports of other packages."""
    services: Services = audited.services
    system = LoadRequest(model_name="m", config_json='{"secret": "hidden"}', files={"1/model.py": b"hidden"})
    registration = services.registration
    assert registration is not None
    cuda = CudaRegistration(name="r", raw_handle=bytes(64), device_id=0, byte_size=8)
    calls = {
        "load": lambda: services.repository.load(system),
        "unload": lambda: services.repository.unload("m", unload_dependents=True),
        "register repository": lambda: registration.register("/models", {}),
        "rollout": lambda: services.diagnostics.rollout("m", "promote"),
        "log settings": lambda: services.diagnostics.update_log_settings(LogSettings(log_verbose_level=3)),
        "trace settings": lambda: services.diagnostics.trace_settings("", {"trace_rate": ("5",)}),
        "start recording": lambda: services.recordings.change(RecordingOptions()),
        "stop recording": lambda: services.recordings.change(None),
        "register region": lambda: services.shared_memory.register(cuda),
        "unregister region": lambda: services.shared_memory.unregister(RegionKind.SYSTEM, "r"),
    }
    for action, call in calls.items():
        with contextlib.suppress(TpyError, AttributeError):
            await call()
        (line,) = audited.lines()
        assert (line["action"], line["protocol"]) == (action, "program")
        assert "hidden" not in json.dumps(line)
    registration.unregister("/models")
    assert [line["action"] for line in audited.lines()] == ["unregister repository"]
    await services.diagnostics.trace_settings("")
    services.diagnostics.log_settings()
    with pytest.raises(InvalidArgument, match="unexpected plan"):
        await services.diagnostics.rollout("m", "", "{}")
    assert (await services.diagnostics.rollout("m")).model == "m"
    assert audited.lines() == [], "nothing was to be changed"
    assert present_action() is None
