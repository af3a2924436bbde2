"""Routes of what the page shows beside live figures: checks of configurations, labels, traces."""

from __future__ import annotations

import json
from typing import Any

from .fakes import FakeChecks, FakeServices, FakeTraces
from .harness import get, post, running

CHECK = "/v2/repository/models/m/check"


async def test_a_configuration_is_checked() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        assert (await client.ask(post(CHECK, json.dumps({})))).status == 501
        services.checks = checks = FakeChecks()
        answer: Any = (await client.ask(post(CHECK, json.dumps({"parameters": {"config": "{}"}})))).document
        assert answer["problems"] == [
            {"severity": "error", "message": "too few", "field": "input[0].dims", "line": 3, "column": 4, "expected": ""}
        ]
        assert (answer["config"], answer["versions"], answer["selected"]) == ({"name": "m"}, ["1", "2"], ["2"])
        assert (await client.ask(post(CHECK, json.dumps({})))).status == 200
        assert checks.asked == [("m", "{}"), ("m", None)]
        for wrong in ({"parameters": {"config": 1}}, {"parameters": {"config": None}}, {"parameters": 1}, [1]):
            assert (await client.ask(post(CHECK, json.dumps(wrong)))).status == 400, wrong
        long = "#" * 300_000
        assert (await client.ask(post(CHECK, json.dumps({"parameters": {"config": long}})))).status == 200
        assert checks.asked[-1] == ("m", long)
        assert services.repository.loads == []


async def test_labels() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        for path in ("/v2/models/m/labels", "/v2/models/m/versions/1/labels"):
            assert (await client.ask(get(path))).document == {"labels": {"OUTPUT0": ["zero", "one", "two"]}}
        assert (await client.ask(get("/v2/models/x/labels"))).status == 404


async def test_the_newest_traces() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        assert (await client.ask(get("/v2/trace/recent"))).status == 501
        services.traces = FakeTraces()
        found: Any = (await client.ask(get("/v2/trace/recent?after=1"))).document
        ((trace),) = found["traces"]
        assert (trace["number"], trace["parts"][0]["timestamps"]) == (2, [{"name": "QUEUE_START", "ns": 10}])
        assert (await client.ask(get("/v2/trace/recent?after=x"))).status == 400
