"""Web pages that ask the server through a visitor's browser, on each port and route."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
import trio
from grpclib.const import Status
from quart_trio import QuartTrio

from tpy.errors import Forbidden, InvalidArgument
from tpy.frontends.grpc.control import APIS, CHANGING
from tpy.frontends.http.quart_bridge import BODY
from tpy.frontends.web_pages import WebPages, read_web_pages

from .applications import applications
from .grpc.fakes import port
from .http.fakes import FakeServices
from .http.harness import INFER, get, infer_body, post, running

LOAD = "/v2/repository/models/m/load"
EVIL = "Origin: http://evil.example"
OWN: list[list[str]] = [
    [],
    ["Origin: http://127.0.0.1:8003", "Host: 127.0.0.1:8003", "Sec-Fetch-Site: same-origin"],
    ["Origin: http://localhost:8003", "Host: localhost:8003"],
    ["Origin: http://[::1]:8003", "Host: [::1]:8003"],
    ["Origin: https://gpu-box", "Host: gpu-box"],
    ["Origin: http://tpy.localhost", "Host: TPY.localhost"],
    ["Host: tpy.other.example"],  # no browser: whatever name it has found the server by
    ["Origin: https://Board.Example", "Host: 127.0.0.1", "Sec-Fetch-Site: cross-site"],  # allowed
    ["Origin: http://tpy.example", "Host: tpy.example"],  # allowed
]
OTHERS = [
    [EVIL, "Host: 127.0.0.1:8003"],
    ["Origin: null", "Host: 127.0.0.1:8003"],
    [EVIL, "Host: evil.example"],  # rebound
    ["Sec-Fetch-Site: none", "Host: evil.example"],
    ["Sec-Fetch-Site: cross-site", "Host: localhost"],
    ["Sec-Fetch-Site: same-site", "Host: localhost"],
    ["Sec-Fetch-Site: Cross-Site", "Host: localhost"],
    ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none", "Host: localhost"],
    ["Origin: http://localhost:3000", "Host: localhost:8003"],
    ["Origin: http://evil.localhost.example", "Host: evil.localhost.example"],
    ["Origin: http://127.0.0.1:8003", "Host: 127.0.0.1:8003", EVIL],  # as a browser never sends it
    ["Origin: http://127.0.0.1.evil.example", "Host: 127.0.0.1.evil.example"],
]
PAGES = WebPages(origins=frozenset({"https://board.example"}), hosts=frozenset({"tpy.example"}))


def _request(method: str, path: str, headers: Iterable[str], body: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}", "Content-Type: text/plain", *headers]
    if not any(line.startswith("Host:") for line in lines):
        lines.append("Host: test")
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@pytest.mark.parametrize("headers", OWN, ids=str)
async def test_own_pages_and_programs_load_models(headers: list[str]) -> None:
    services = FakeServices()
    async with running(services, web_pages=PAGES) as server:
        answer = await (await server.connect()).ask(_request("POST", LOAD, headers))
        assert answer.status == 200
        assert services.repository.loads


@pytest.mark.parametrize("headers", OTHERS, ids=str)
async def test_pages_of_others_load_no_model(headers: list[str]) -> None:
    services = FakeServices()
    async with running(services, web_pages=PAGES) as server:
        answer = await (await server.connect()).ask(_request("POST", LOAD, headers))
        assert answer.status == 403
        assert "--allowed-" in answer.error
        assert not services.repository.loads


async def test_inference_and_reading_do_not_ask_who_sends_them() -> None:
    async with running(FakeServices(), web_pages=PAGES) as server:
        client = await server.connect()
        assert (await client.ask(post(INFER, infer_body(1), EVIL))).status == 200
        assert (await client.ask(get("/v2", EVIL))).status == 200


PREDICTIONS = ("/predictions/<model>", "/predictions/<model>/<release>", "/wfpredict/<model>")
INFERENCE = (
    "/infer",
    "/generate",
    "/generate_stream",
    ":predict",
    ":classify",
    ":regress",
    "/completions",
    "/embeddings",
    "/invocations",
    "/invoke",
    *PREDICTIONS,
)


async def test_every_route_that_changes_something_refuses_them() -> None:
    """Also one that is added later: what is neither read nor inference is refused."""
    tried = 0
    for name, app in applications():
        for rule in app.url_map.iter_rules():
            path = re.sub("<[^>]*>", "1", rule.rule)
            for method in (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}:
                if rule.rule.endswith(INFERENCE):
                    continue
                fields = {"X-Vertex-Ai-Triton-Redirect": "v2/repository/index"}
                scope = {"headers": [(b"origin", b"http://evil.example"), (b"host", b"localhost")]}
                answer = await _asked(app, method, path, fields, scope)
                assert answer == 403, (name, method, rule.rule, answer)
                tried += 1
    assert tried > 20


async def _asked(app: QuartTrio, method: str, path: str, fields: dict[str, str], scope: dict[str, Any]) -> int:
    """The status of the application itself."""
    headers = [*scope["headers"], *((name.lower().encode(), value.encode()) for name, value in fields.items())]
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    bodies = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> Any:
        for body in bodies:
            return body
        return await trio.sleep_forever()

    await app(
        {
            "type": "http",
            "asgi": {"spec_version": "2.3", "version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1),
            "state": {BODY: b""},
            "extensions": {},
        },
        receive,
        send,
    )
    return int(sent[0]["status"])


def test_every_method_of_grpc_is_known_to_change_something_or_not() -> None:
    reading = {
        "ServerLive",
        "ServerReady",
        "ModelReady",
        "ServerMetadata",
        "ModelMetadata",
        "SystemSharedMemoryStatus",
        "CudaSharedMemoryStatus",
        "ModelConfig",
        "RepositoryIndex",
        "ModelStatistics",
    }
    assert {path.rpartition("/")[2] for path in APIS} == reading | {path.rpartition("/")[2] for path in CHANGING}


@pytest.mark.parametrize("path", sorted(CHANGING))
@pytest.mark.parametrize("metadata", [("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")])
async def test_calls_of_browsers_change_nothing(path: str, metadata: tuple[str, str]) -> None:
    async with port() as server:
        call = await server.call(path.rpartition("/")[2], b"", metadata=(metadata,))
        assert call.status is not Status.OK
        assert "--allowed-origin" in call.message


async def test_the_management_address_is_asked_by_its_names_only() -> None:
    async with running(FakeServices(), web_pages=WebPages(hosts=frozenset({"tpy.example"}), hosts_only=True)) as server:
        client = await server.connect()
        for host, status in (("evil.example", 403), ("127.0.0.1:8003", 200), ("tpy.example:8003", 200), ("localhost", 200)):
            for request in (_request("GET", "/v2", [f"Host: {host}"]), _request("POST", LOAD, [f"Host: {host}"])):
                assert (await client.ask(request)).status == status, host


def test_flags() -> None:
    pages = read_web_pages(
        {"allowed_origin": ("https://A.example:1",), "allowed_host": ("B.example.",)}, address="c.example", hosts_only=True
    )
    assert pages.origins == {"https://a.example:1"}
    assert {"b.example", "c.example"} < pages.hosts
    for origins, hosts in ((("a.example",), ()), (("https://a.example/x",), ()), ((), ("a:80",)), ((), ("",))):
        with pytest.raises(InvalidArgument, match="--allowed-"):
            read_web_pages({"allowed_origin": origins, "allowed_host": hosts}, address="")
    with pytest.raises(Forbidden, match="rebinding"):
        pages.require({b"host": b"evil.example"}, changes=False)
