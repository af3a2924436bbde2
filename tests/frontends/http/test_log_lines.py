"""The route of the log's newest lines."""

from __future__ import annotations

from tpy.telemetry.logs import LogTail

from .fakes import FakeServices
from .harness import get, running


async def test_the_newest_lines_of_the_log() -> None:
    services = FakeServices()
    async with running(services) as server:
        client = await server.connect()
        answer = await client.ask(get("/v2/logging/tail"))
        assert answer.status == 501
        assert answer.error == "this server does not offer that"
        services.log = tail = LogTail()
        for number in range(3):
            tail.append(f"line {number}")
        assert (await client.ask(get("/v2/logging/tail?after=2"))).document == {"lines": [{"number": 3, "text": "line 2"}]}
        assert (await client.ask(get("/v2/logging/tail?other=2&after=3"))).document == {"lines": []}
        for wrong in ("-1", "x", "", "1" * 30):
            assert (await client.ask(get(f"/v2/logging/tail?after={wrong}"))).status == 400, wrong
