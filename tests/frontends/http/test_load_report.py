"""`endpoint-load-metrics` on answers to inference, for those who ask for it."""

from __future__ import annotations

import pytest

from tests.frontends.loads import Loads
from tpy.errors import Unavailable

from .fakes import FakeServices
from .harness import INFER, get, infer_body, post, running

ASKED = "Endpoint-Load-Metrics-Format: "
TEXT = "TEXT application_utilization=0.5, named_metrics.tpy_load=0.25"
GENERATE = '{"INPUT0": [1]}'


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("text", TEXT),
        ("TEXT", TEXT),
        ("json", 'JSON {"application_utilization":0.5,"named_metrics":{"tpy_load":0.25}}'),
        ("bin", None),
        ("", None),
    ],
)
async def test_the_forms(form: str, said: str | None) -> None:
    services = FakeServices()
    services.metrics = loads = Loads()
    async with running(services) as server:
        client = await server.connect()
        answer = await client.ask(post(INFER, infer_body(1), ASKED + form))
        assert (answer.status, answer.headers.get("endpoint-load-metrics")) == (200, said)
        plain = await client.ask(post(INFER, infer_body(1)))
        assert (plain.status, plain.body) == (200, answer.body)
        assert "endpoint-load-metrics" not in plain.headers
    assert loads.asked == ([] if said is None else [("m", None)])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/m/versions/1/infer", infer_body(1)),
        ("/v2/models/m/versions/1/generate", GENERATE),
        ("/v2/models/m/versions/1/generate_stream", GENERATE),
    ],
)
async def test_all_routes_of_inference(path: str, body: str) -> None:
    services = FakeServices()
    services.metrics = loads = Loads()
    async with running(services) as server:
        client = await server.connect()
        answer = await client.ask(post(path, body, ASKED + "text"))
        assert (answer.status, answer.headers.get("endpoint-load-metrics")) == (200, TEXT)
        other = await server.connect()
        answer = await other.ask(get("/v2/models/m", ASKED + "text"))
        assert "endpoint-load-metrics" not in answer.headers
    assert loads.asked == [("m", 1)]


async def test_an_answer_comes_whether_or_not_the_load_is_known() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        for services.metrics in (None, Loads(fails=True)):
            answer = await client.ask(post(INFER, infer_body(1), ASKED + "text"))
            assert (answer.status, "endpoint-load-metrics" in answer.headers) == (200, False)
        services.metrics = Loads()
        services.inference.raises = Unavailable("Exceeds maximum queue size")
        answer = await client.ask(post(INFER, infer_body(1), ASKED + "text"))
        assert (answer.status, answer.error) == (503, "Exceeds maximum queue size")
