"""Every route of every port, in all spellings and methods, without the key or the credential that it needs: nobody gets in.
Routes come from the tables of the applications and the descriptors of the services, so that new ones are tried, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import grpc
import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess
from tests.frontends.applications import applications
from tpy.frontends.access.config import digest, key_entry
from tpy.frontends.grpc import rollouts
from tpy.frontends.grpc.calls import INFER_PATH, STREAM_INFER_PATH
from tpy.frontends.grpc.control import APIS
from tpy.frontends.restrictions import API_CATEGORIES

from .attacker import Attacker
from .test_http2 import PREFACE, frame, headers, replaced

SERVICES = {
    "http": "HTTPService",
    "mlflow": "MLflow HTTPService",
    "openai": "OpenAI HTTPService",
    "sagemaker": "Sagemaker HTTPService",
    "tensorflow_serving": "TensorFlow Serving HTTPService",
    "torchserve": "TorchServe HTTPService",
    "vertex": "Vertex AI HTTPService",
    "management": "Management HTTPService",
}
PORTS = (
    "--allow-mlflow=true",
    "--mlflow-model=affine",
    "--allow-openai=true",
    "--allow-sagemaker=true",
    "--sagemaker-default-model=affine",
    "--allow-tensorflow-serving=true",
    "--allow-torchserve=true",
    "--allow-vertex-ai=true",
    "--vertex-ai-default-model=affine",
    "--vertex-ai-predict-route=/predict",
    "--vertex-ai-health-route=/health",
    "--model-control-mode=explicit",
    "--load-model=affine",
    "--load-model=count",
)
PUBLIC = re.compile(r"/docs|/openapi\.json|/v2/openapi\.json|/page(/.*)?")
"""The same for everybody, without a word about this server."""

LIFE = re.compile(r"/v2/health/(live|ready)|/ping|/health|/health/ready")
"""Open to probes where --auth-required is given."""

REFUSED = (400, 401, 403, 404, 405)
KEYS = (
    ("",),
    ("X-Admin: wrong",),
    ("X_Admin: secret",),
    ("X-Admin : secret",),
    ("X-Admin: secret", "X-Admin: secret"),
    ("X-Admin: wrong", "X-Admin: secret"),
    ("triton-grpc-protocol-x-admin: secret",),
    ("X-HTTP-Method-Override: GET", "X-Method-Override: GET", "X-HTTP-Method: GET"),
    ("X-Original-URL: /docs", "X-Rewrite-URL: /docs", "X-Forwarded-Prefix: /docs"),
    ("Connection: X-Admin, close",),
    ("Authorization: Bearer ", "X-API-Key:"),
    ("Authorization: Basic YWRtaW46YWRtaW4=",),
    ("X-API-Key: key-of-admin, key-of-admin",),
    ("Content-Type: application/grpc-web",),
)


class Closed(NamedTuple):
    """A server that is for nobody without a key. `asks_probes`: not even to know that it lives."""

    server: ServerProcess
    asks_probes: bool
    attacker: Attacker

    def ask(self, port: str, method: str, target: str, *more: str) -> list[int]:
        """The statuses of all answers to one request with these header lines."""
        lines = "".join(f"{each}\r\n" for each in more if each)
        request = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n{lines}\r\n{{}}"
        return [answer.status for answer in self.attacker.exchange(request.encode(), self.server.address(SERVICES[port]) or "")]

    def routes(self) -> list[tuple[str, str, str]]:
        """Port, method and path of everything that needs a key."""
        return [each for each in all_routes() if self.asks_probes or not LIFE.fullmatch(each[2])]


@pytest.fixture(scope="module", params=["keys", "credentials"])
def closed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    """A server of all ports that refuses everybody without a key, by restricted APIs or by --auth-config."""
    home = tmp_path_factory.mktemp("closed")
    write_models(home / "models")
    apis = ",".join(API_CATEGORIES)
    if request.param == "keys":
        flags = [f"--http-restricted-api={apis}:x-admin=secret", f"--grpc-restricted-protocol={apis}:admin=secret"]
    else:
        (home / "auth.toml").write_text(key_entry("admin", digest("key-of-admin"), ["manage", "observe", "infer"], ["*"]))
        flags = [f"--auth-config={home / 'auth.toml'}", "--auth-required=true"]
    asks_probes = request.param == "keys"
    with ServerProcess(*PORTS, "--management-address=127.0.0.1:0", *flags, repositories=[home / "models"]) as server:
        yield Closed(server, asks_probes, Attacker(server, home))
        assert "unexpected" not in server.log


def all_routes() -> Iterator[tuple[str, str, str]]:
    """Port, method and path of everything that needs a key."""
    for port, app in applications():
        for rule in app.url_map.iter_rules():
            path = re.sub("<[^>]*>", "affine", rule.rule).replace("versions/affine", "versions/1")
            for method in sorted(rule.methods or ()):
                if not PUBLIC.fullmatch(path):
                    yield port, method, path
                    if port == "http":
                        yield "management", method, path
    for kind in ("infer", "versions/1/infer"):
        yield "http", "POST", f"/v2/models/affine/{kind}"


def spellings(path: str) -> Iterator[str]:
    """Other ways to write a path that some parser or proxy takes for the same."""
    yield from (
        path.upper(),
        f"{path}/",
        f"/{path}",
        path.replace("/", "//"),
        f"/.{path}",
        f"/x/..{path}",
        f"{path}/.",
        f"{path}/x/..",
    )
    yield from (
        f"{path};x=y",
        f"{path}#x",
        f"{path}?x=/docs",
        f"{path}%3fx",
        f"{path}%00",
        f"{path}%20",
        f"{path}%0d%0a",
        f"{path}.json",
    )
    yield from (f"/docs/..{path}", f"/docs%2f..{path}", f"/%2e%2e{path}", f"/docs/%2e%2e{path}", f"/docs;{path}")
    yield from (f"http://x{path}", f"HTTP://localhost{path}", f"http://x@y{path}", f"http:{path}", path.replace("/", "\\"))
    encoded = re.sub("[a-z0-9]", lambda found: f"%{ord(found[0]):02x}", path)
    yield from (encoded, encoded.replace("%", "%25"), path.replace("/", "%2f"), path[0] + path[1:].replace("/", "%2F"))
    yield from (path.replace("e", "%u0065"), path.replace("e", "%c1%a5"), path.replace("o", "%ef%bd%8f"))


def test_every_route_needs_the_key(closed: Closed) -> None:
    """Also those that find no such model: who has no key does not learn that."""
    routes = closed.routes()
    assert len(routes) > 100
    assert {port for port, _, _ in routes} == set(SERVICES)
    found = {route: closed.ask(*route) for route in routes}
    assert {route: statuses for route, statuses in found.items() if statuses not in ([401], [403])} == {}


Route = TypeVar("Route")

METHODS = ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "QUERY", "CONNECT", "get", "PROPFIND", "M-SEARCH")

SHARE = 3
"""One in this many pairs of a route and a way around its key is tried by `make test`, and all by `make soak`: each route with a
third of the ways, each way with a third of the routes."""


def of_all(pairs: Iterable[tuple[Route, Iterable[str]]], soak: int) -> Iterator[tuple[Route, str]]:
    """These routes, each with those of its ways that are tried."""
    share = max(1, SHARE // soak)
    for number, (route, ways) in enumerate(pairs):
        yield from ((route, way) for place, way in enumerate(ways) if (number + place) % share == 0)


def test_no_other_spelling_needs_none(closed: Closed, soak: int) -> None:
    routes = [(port, method, path) for port, method, path in closed.routes() if method != "HEAD"]
    found = {
        (port, method, target): statuses
        for (port, method, _), target in of_all(((route, spellings(route[2])) for route in routes), soak)
        if not set(statuses := closed.ask(port, method, target)) <= set(REFUSED)
    }
    assert found == {}


def test_no_other_method_or_header_is_a_key(closed: Closed, soak: int) -> None:
    found = {}
    paths = sorted({(port, path) for port, _, path in closed.routes()})
    for (port, path), method in of_all(((each, METHODS) for each in paths), soak):
        found[port, method, path] = closed.ask(port, method, path)
    for (port, method, path), header in of_all(((route, KEYS) for route in closed.routes()), soak):
        found[port, method, path, header] = closed.ask(port, method, path, *header)
    for target in ("metrics", "v2", "v2/models/affine", "v2/models/affine/infer", "v2/repository/index", "v2/models/stats"):
        for text in (
            target,
            f"/{target}",
            target.replace("/", "//"),
            target.replace("e", "%65"),
            f"{target}/",
            f"{target}?a",
            f" {target}",
        ):
            found["vertex", text] = closed.ask("vertex", "POST", "/predict", f"X-Vertex-Ai-Triton-Redirect: {text}")
    assert {what: statuses for what, statuses in found.items() if not set(statuses) <= set(REFUSED)} == {}


def test_the_key_opens_every_port(closed: Closed) -> None:
    key = "X-Admin: secret" if closed.asks_probes else "X-API-Key: key-of-admin"
    asked = {"http": "/v2", "openai": "/v1/models", "sagemaker": "/ping", "vertex": "/health", "management": "/v2/logging"}
    assert {port: closed.ask(port, "GET", path, key) for port, path in asked.items()} == {port: [200] for port in asked}


@pytest.mark.parametrize("service", SERVICES.values())
def test_http_2_over_a_port_of_http_1(closed: Closed, service: str) -> None:
    asked = headers(replaced(method=b"GET", path=b"/v2"))
    said = closed.attacker.farewell(PREFACE + frame(4, 0, 0) + asked, closed.server.address(service) or "")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1


def test_every_method_of_grpc_needs_the_key(closed: Closed) -> None:
    """In each spelling of its path, and with every other content type."""
    reached = []
    with grpc.insecure_channel(closed.server.grpc) as channel:
        for path, api in {**APIS, **rollouts.APIS, INFER_PATH: "inference", STREAM_INFER_PATH: "inference"}.items():
            if not closed.asks_probes and api == "health":
                continue
            for spelled in (path, f"/{path}", f"{path}/", path.lower(), path.replace("M", "%4d"), f"{path}?x", f"/x/..{path}"):
                for metadata in (
                    (),
                    (("admin", "secret"),),
                    (("triton-grpc-protocol-admin-bin", b"secret"),),
                    (("x-api-key", "x"),),
                ):
                    call = channel.stream_stream(spelled)(iter([b""]), timeout=20, metadata=metadata)
                    try:
                        reached += [(spelled, metadata, answer) for answer in call]
                    except grpc.RpcError as error:
                        wanted = grpc.StatusCode.UNIMPLEMENTED if spelled != path else None
                        refused = (
                            grpc.StatusCode.UNAVAILABLE,
                            grpc.StatusCode.UNAUTHENTICATED,
                            grpc.StatusCode.PERMISSION_DENIED,
                        )
                        if error.code() is not wanted and (wanted or error.code() not in refused):
                            reached.append((spelled, metadata, error.code()))
    assert reached == []


CONTENT_TYPES = (
    "application/grpc-web",
    "application/grpc-web-text",
    "application/json",
    "application/grpc+json",
    "text/plain",
    "",
)


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_no_other_content_type_is_a_way_in(closed: Closed, content_type: str) -> None:
    """Nor a header of the key that HTTP/2 forbids to write so."""
    path = b"/inference.GRPCInferenceService/RepositoryIndex"
    sent = (
        (b"Triton-Grpc-Protocol-Admin", b"secret"),
        (b"triton_grpc_protocol_admin", b"secret"),
        (b"x_api_key", b"key-of-admin"),
    )
    for name, value in sent:
        fields = (*replaced(path=path, **{"content-type": content_type.encode()}), (name, value))
        fields = tuple((each.removeprefix(b":") if each == b":content-type" else each, text) for each, text in fields)
        call = headers(fields, end=False) + frame(0, 1, 1, bytes(5))
        said = closed.attacker.farewell(PREFACE + frame(4, 0, 0) + call, closed.server.grpc)
        assert b"affine" not in said


def test_control_calls_are_at_the_management_address_only(tmp_path: Path) -> None:
    """On the other ports by no spelling, though nothing asks for a key."""
    write_models(tmp_path / "models")
    flags = (*PORTS, "--management-address=127.0.0.1:0")
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        closed = Closed(server, True, Attacker(server, tmp_path))
        managed = re.compile(r".*/(load|unload|index|check)|.*/(logging|trace|recording)(/.*)?|/models/?(/affine)?")
        routes = [each for each in all_routes() if each[0] != "management" and managed.fullmatch(each[2])]
        found = {}
        for port, method, path in routes:
            for target in (path, *spellings(path)):
                found[port, method, target] = closed.ask(port, method, target)
        assert {what: statuses for what, statuses in found.items() if not set(statuses) <= set(REFUSED)} == {}
        assert json.loads(closed.attacker.ask("GET", "/v2/models/affine").body)["name"] == "affine"
