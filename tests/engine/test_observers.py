"""Observers of requests, in virtual time: what a record says of each way that a request can go."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from tests.engine.ensembles import CHAIN, MembersBackend
from tests.engine.fakes import RecordingSink, Rig, config, request, rig
from tpy.errors import TpyError
from tpy.messages import InferenceRequest, InferenceResponse, RequestRecord
from tpy.observers import RequestObserver
from tpy.units import NS_PER_MS


class Watcher(RequestObserver):
    """Notes the names of what it is told, and the records that are over."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.ends: list[RequestRecord] = []

    def admitted(self, record: RequestRecord, request: InferenceRequest) -> None:
        self.told.append(("admitted", request.id))

    def responded(self, record: RequestRecord, response: InferenceResponse) -> None:
        self.told.append(("responded", response.id))

    def ended(self, record: RequestRecord) -> None:
        self.told.append(("ended", record.id))
        self.ends.append(record)

    def finished(self, record: RequestRecord) -> None:
        self.told.append(("finished", record.id))


def watched(r: Rig) -> Watcher:
    watcher = Watcher()
    r.observers.add(watcher)
    return watcher


async def test_an_answered_request_has_its_times(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=7) as r:
        await r.serve(config())
        watcher = watched(r)
        first, second = r.submit(request(id="1")), r.submit(request(id="2"))
        await first.wait()
        await second.wait()
    assert watcher.told == [
        *[("admitted", "1"), ("admitted", "2")],
        *[("responded", "1"), ("ended", "1"), ("responded", "2"), ("ended", "2")],
    ]
    one, two = watcher.ends
    assert (one.model, one.version, one.status, one.error, one.responses) == ("m", 1, "OK", "", 1)
    assert one.started_ns == one.submitted_ns
    assert two.started_ns == two.submitted_ns + 7 * NS_PER_MS, "it waited for the first"
    assert two.ended_ns - two.submitted_ns == 14 * NS_PER_MS
    assert two.input_ns + two.infer_ns + two.output_ns <= 7 * NS_PER_MS


async def test_refused_late_and_cancelled_requests_end_once(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        watcher = watched(r)
        with pytest.raises(TpyError):
            r.submit(request(1, 99, id="shape"))
        running = r.submit(request(id="running"))
        late = r.submit(request(id="late", timeout_us=5000))
        gone = r.submit_for(RecordingSink(), request(id="gone"))
        gone.cancel()
        gone.cancel()
        await late.wait()
        await running.wait()
    assert [(record.id, record.status) for record in watcher.ends] == [
        ("shape", "Invalid argument"),
        ("gone", "Cancelled"),
        ("late", "Unavailable"),
        ("running", "OK"),
    ]
    shape, _, late_record, _ = watcher.ends
    assert "shape" in shape.error
    assert late_record.error == "Request timeout expired"
    assert late_record.started_ns is None


async def test_a_request_that_ends_while_it_executes_has_the_times_so_far(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        watcher = watched(r)
        first = r.submit_for(RecordingSink(), request(id="first"))
        behind = r.submit_for(RecordingSink(), request(id="behind"))
        await trio.sleep(0.4)
        first.cancel()
        await trio.sleep(0.1)
        behind.cancel()
    executed, waited = watcher.ends
    assert executed.started_ns == executed.submitted_ns
    assert executed.infer_ns == 400 * NS_PER_MS
    assert (waited.id, waited.started_ns, waited.infer_ns) == ("behind", None, 0)


async def test_steps_of_an_ensemble_are_children_of_its_request(autojump_clock: MockClock) -> None:
    async with rig(backend=MembersBackend(), latency_ms=3) as r:
        await r.serve(config("a"))
        await r.serve(config("b"))
        await r.serve(CHAIN)
        watcher = watched(r)
        await r.submit(request(model="e", id="x")).wait()
    first, second, whole = watcher.ends
    assert (whole.model, whole.parent) == ("e", None)
    for step, model in ((first, "a"), (second, "b")):
        assert (step.model, step.protocol, step.parent) == (model, "step", whole)
        assert step.finished_ns == step.ended_ns, "no connection takes its answer"
    assert second.submitted_ns == first.ended_ns


async def test_without_an_observer_there_is_no_record(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await r.serve(config())
        watcher = watched(r)
        r.observers.discard(watcher)
        assert r.observers.open("http") is None
        await r.submit(request()).wait()
    assert not watcher.told


async def test_an_observer_that_fails_costs_nobody_else(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    class Broken(RequestObserver):
        def ended(self, record: RequestRecord) -> None:
            raise ValueError("a bug")

    async with rig() as r:
        await r.serve(config())
        r.observers.add(Broken())
        watcher = watched(r)
        await r.submit(request(id="1")).wait()
    assert ("ended", "1") in watcher.told
    (line,) = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert "Broken" in line.getMessage()


def test_a_record_is_finished_once() -> None:
    watcher = Watcher()
    record = RequestRecord(_Taker(watcher), "http")
    record.finish(5, "Internal", "the answer could not be written", response_bytes=3)
    record.finish(9, response_bytes=3)
    assert (record.finished_ns, record.status, record.response_bytes) == (5, "Internal", 3)
    assert watcher.told == [("finished", "")]


class _Taker:
    """Tells one observer."""

    def __init__(self, observer: RequestObserver) -> None:
        self.admitted = observer.admitted
        self.responded = observer.responded
        self.ended = observer.ended
        self.finished = observer.finished
