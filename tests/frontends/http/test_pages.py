"""The pages for people: links, models and routes, for browsers and for curl; what models are called cannot become HTML."""

from __future__ import annotations

import json
import re
import typing

import msgspec
import pytest

from tpy.frontends.http.app import create_app
from tpy.frontends.http.openapi import OPERATIONS
from tpy.messages import IndexEntry, ModelState

from .fakes import FakeServices
from .harness import get, running

BROWSER = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"


@pytest.mark.parametrize("page", [False, True])
async def test_curl_gets_links_that_lead_somewhere(page: bool) -> None:
    async with running(FakeServices(), page=page) as server:
        client = await server.connect()
        document = (await client.ask(get("/"))).document
        assert isinstance(document, dict)
        assert set(document) == {"name", "version", "links"}
        assert ("page" in document["links"]) is page
        for path in document["links"].values():
            assert (await client.ask(get(path))).status == 200, path


async def test_the_models() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        assert (await client.ask(get("/v2/models"))).document == {
            "models": [
                {
                    "name": "broken",
                    "version": "1",
                    "state": "UNAVAILABLE",
                    "reason": "Internal: no",
                    "metadata": "/v2/models/broken/versions/1",
                },
                {"name": "m", "version": "1", "state": "READY", "metadata": "/v2/models/m/versions/1"},
                {"name": "never", "metadata": "/v2/models/never"},
            ]
        }


@pytest.mark.parametrize("path", ["/", "/v2/models"])
async def test_a_browser_gets_a_page(path: str) -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        answer = await client.ask(get(path, BROWSER))
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        text = answer.body.decode()
        assert '<a href="/v2/models/m/versions/1">m</a>' in text
        assert "INPUT0 FP32[-1,-1]" in text
        for more in ("config", "stats"):
            assert f'<a href="/v2/models/m/versions/1/{more}">' in text
            assert (await client.ask(get(f"/v2/models/m/versions/1/{more}"))).status == 200
        assert "Internal: no" in text
        assert not re.search(r"<script|https?://", text)


async def test_names_and_reasons_are_no_html() -> None:
    services = FakeServices()
    bad = '<script>alert("1")</script>'
    entries = [IndexEntry(name=bad, version=1, state=ModelState.UNAVAILABLE, reason=bad * 1000), IndexEntry(name=bad)]

    async def index(*, ready_only: bool = False) -> list[IndexEntry]:
        return entries

    services.repository.index = index  # type: ignore[method-assign]
    async with running(services) as server:
        client = await server.connect()
        for path in ("/", "/v2/models"):
            answer = await client.ask(get(path, BROWSER))
            assert answer.status == 200
            assert b"<script" not in answer.body
            assert len(answer.body) < 20_000


async def test_the_routes_are_described() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        page = await client.ask(get("/docs", BROWSER))
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "<code>/v2/models/{model}/generate</code>" in page.body.decode()
        document = json.loads((await client.ask(get("/openapi.json"))).body)
        assert document["openapi"].startswith("3.")
        identifiers = [entry["operationId"] for path in document["paths"].values() for entry in path.values()]
        assert len(set(identifiers)) == len(identifiers) == len(OPERATIONS)
        infer = document["paths"]["/v2/models/{model}/versions/{version}/infer"]["post"]
        assert [parameter["name"] for parameter in infer["parameters"]] == ["model", "version"]


async def test_curl_gets_the_routes_as_text() -> None:
    async with running(FakeServices()) as server:
        page = await (await server.connect()).ask(get("/docs"))
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    lines = page.body.decode().splitlines()
    assert all(any(line.split()[:2] == [each.method, each.path] for line in lines) for each in OPERATIONS)
    assert any(line.startswith("  curl -s localhost:8000/v2/models/iris/generate -d ") for line in lines)
    assert "<" not in page.body.decode()


class _Anything:
    """Stands in for the parts of the application that routes only hold on to."""

    def __getattr__(self, name: str) -> object:
        return self


def test_every_route_is_described_and_no_other() -> None:
    routes = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in create_app(typing.cast(typing.Any, _Anything())).url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert {(operation.method, operation.path) for operation in OPERATIONS} == routes
    assert len(OPERATIONS) == len(routes)
    for operation in OPERATIONS:
        assert not operation.body or isinstance(msgspec.json.decode(operation.body), dict)
