"""The log's line for each request, in virtual time: how it ended and how long it took."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from trio.testing import MockClock

from tests.engine.fakes import RecordingSink, config, request, rig
from tpy.errors import TpyError


@pytest.fixture(autouse=True)
def verbose(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "tpy_data.engine.requests.request_log"):
        yield


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tpy_data.engine.requests.request_log"]


async def test_an_answer_with_its_times(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    async with rig(latency_ms=7) as r:
        await r.serve(config())
        first, second = r.submit(request(id="abc")), r.submit(request())
        await first.wait()
        await second.wait()
    one, two = lines(caplog)
    assert one.startswith("[request id: abc] model: m, version: 1, responses: 1, total: 7000 us, queue: ")
    assert two.startswith("[request id: <id_unknown>] model: m, version: 1, responses: 1, total: 14000 us, queue: ")
    assert one.endswith(", status: OK")
    assert all(
        ", compute input: " in line and ", compute infer: " in line and ", compute output: " in line for line in (one, two)
    )


async def test_what_gets_no_answer(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    """Refused by its model, too late, cancelled: each has its line, once."""
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        with pytest.raises(TpyError):
            r.submit(request(1, 99, id="shape"))
        running = r.submit(request(id="running"))
        late = r.submit(request(id="late", timeout_us=5000))
        gone = r.submit_for(RecordingSink(), request(id="gone"))
        gone.cancel()
        gone.cancel()
        await late.wait()
        await running.wait()
    told = lines(caplog)
    assert len(told) == 4
    head = "[request id: shape] model: m, version: -1, responses: 0, total: 0 us, status: Invalid argument: "
    assert told[0].startswith(head)
    assert told[1] == "[request id: gone] model: m, version: -1, responses: 0, total: 0 us, status: Cancelled"
    assert (
        told[2]
        == "[request id: late] model: m, version: 1, responses: 0, total: 5000 us, status: Unavailable: Request timeout expired"
    )
    assert told[3].startswith("[request id: running] model: m, version: 1, responses: 1, total: 1000000 us")


async def test_nothing_is_made_when_the_log_is_not_verbose(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    async with rig(latency_ms=7) as r:
        await r.serve(config())
        logging.getLogger("tpy_data.engine.requests.request_log").setLevel(logging.INFO)
        await r.submit(request()).wait()
    assert not lines(caplog)
