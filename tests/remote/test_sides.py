"""Services of an engine, used through the protocol: the same answers as from the services themselves."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import trio.testing

from tests.frontends.http.fakes import FakeChecks, FakeServices, FakeTraces, describe
from tests.frontends.loads import Loads
from tests.frontends.observing import Finished
from tests.submitting import submit_to
from tpy.devices import Devices
from tpy.errors import Internal, InvalidArgument, NotFound, TpyError, Unavailable, Unsupported
from tpy.limits.remote import REMOTE_INLINE_BYTES_MAX, REMOTE_WINDOW_RESPONSES
from tpy.messages import (
    CudaRegistration,
    DataType,
    IndexEntry,
    InferenceRequest,
    InferenceResponse,
    LoadRequest,
    ModelState,
    RegionKind,
    Tensor,
)
from tpy.regions import RegionRegistry
from tpy.remote import engine_side
from tpy.remote.core import questions as q
from tpy.services import Services
from tpy.telemetry.logs import LogTail
from tpy.testing import FakeDevice
from tpy.testing.loop_guard import LoopGuard
from tpy.units import MIB

from .sides import Sink, both_sides, request


def said(services: Services, question: str, *arguments: Any) -> object:
    """The answer of the inference service, or its error."""
    try:
        answer = getattr(services.inference, question)(*arguments)
    except TpyError as error:
        return type(error), error.message
    return (answer.copy, answer.description) if question == "resolve" else answer


@pytest.mark.parametrize("name", ["m", "broken", "never", "there's none", "m/2", ""])
@pytest.mark.parametrize("version", [None, 1, 2, 2**62])
async def test_what_is_served_is_answered_as_by_the_engine(name: str, version: int | None) -> None:
    async with both_sides() as sides:
        for question, arguments in (("resolve", (name, version)), ("config", (name, version)), ("ready_versions", (name,))):
            assert said(sides.services, question, *arguments) == said(sides.fakes, question, *arguments)


async def test_log_traces_and_checks_are_those_of_the_engine() -> None:
    fakes = FakeServices()
    async with both_sides(fakes) as sides:
        assert sides.services.log is not None
        assert sides.services.traces is not None
        assert sides.services.checks is not None
        for nothing in (
            partial(sides.services.log.lines_after, 0),
            partial(sides.services.traces.recent_after, 0),
            partial(sides.services.checks.check_config, "m"),
        ):
            with pytest.raises(Unsupported):
                await nothing()
        fakes.log, fakes.traces, fakes.checks = tail, traces, checks = LogTail(), FakeTraces(), FakeChecks()
        for number in range(3):
            tail.append(f"line {number}")
        sides.services.log.lost(2)
        sides.services.log.lost(3)
        assert await sides.services.log.lines_after(1) == await tail.lines_after(1) != []
        assert tail.lost_count == 5
        assert await sides.services.traces.recent_after(1) == await traces.recent_after(1) != []
        here = await sides.services.checks.check_config("m", "{}")
        assert here == await checks.check_config("m", "{}")
        assert checks.asked == [("m", "{}")] * 2


class Page(Loads):
    async def page(self, *, openmetrics: bool = False) -> bytes:
        return b"# EOF" if openmetrics else b"nv_inference_count 1"


async def test_the_metrics_are_those_of_the_engine() -> None:
    async with both_sides() as sides:
        metrics = sides.services.metrics
        assert metrics is not None
        with pytest.raises(Unsupported, match="does not offer that"):
            await metrics.page()
        sides.fakes.metrics = Page()
        assert await metrics.page() == b"nv_inference_count 1"
        assert await metrics.page(openmetrics=True) == b"# EOF"
        assert await metrics.gpus() == await sides.fakes.metrics.gpus()
        assert await metrics.load("m", 2) == await sides.fakes.metrics.load("m", 2)


async def test_the_other_services_answer_as_those_of_the_engine() -> None:
    async with both_sides() as sides:
        there, here = sides.fakes, sides.services
        assert here.repository.server_live() is here.repository.server_ready() is True
        assert await here.repository.index() == await there.repository.index()
        assert await here.repository.index(ready_only=True) == await there.repository.index(ready_only=True)
        assert here.diagnostics.server_metadata() == there.diagnostics.server_metadata()
        assert await here.diagnostics.statistics("m") == await there.diagnostics.statistics("m")
        assert await here.diagnostics.counters() == await there.diagnostics.counters()
        assert await here.diagnostics.explain("m", 1) == await there.diagnostics.explain("m", 1)
        assert await here.diagnostics.graph("m", 1) == await there.diagnostics.graph("m", 1)
        with pytest.raises(InvalidArgument, match="requested model 'x' is not available"):
            await here.diagnostics.statistics("x")
        assert await here.repository.model_ready("m") is True
        assert await here.repository.model_ready("x") is False
        with pytest.raises(TpyError) as one:
            here.shared_memory.require_enabled()
        with pytest.raises(TpyError) as other:
            there.shared_memory.require_enabled()
        assert (type(one.value), one.value.message) == (type(other.value), other.value.message)
        await here.repository.unload("m", unload_dependents=True)
        assert there.repository.unloads == [("m", True)]
        await here.repository.load(LoadRequest(model_name="m", config_json="{}", files={"1/a": b"\xff"}))
        assert there.repository.loads == [LoadRequest(model_name="m", config_json="{}", files={"1/a": b"\xff"})]


async def test_log_settings_are_those_of_the_engine() -> None:
    async with both_sides() as sides:
        told: list[object] = []
        sides.engine.on_log_settings = told.append
        changed = msgspec.structs.replace(sides.services.diagnostics.log_settings(), log_verbose_level=3)
        await sides.services.diagnostics.update_log_settings(changed)
        assert sides.services.diagnostics.log_settings() == sides.fakes.diagnostics.log_settings() == changed
        assert told == [changed]


@pytest.mark.parametrize("count", [0, 1, 7, REMOTE_INLINE_BYTES_MAX // 4 + 1, 3_000_000])
async def test_tensors_of_any_size_go_there_and_back(count: int) -> None:
    async with both_sides() as sides:
        sink = Sink()
        array = np.arange(count, dtype=np.float32).reshape(1, count)
        submit_to(sides.services.inference, request(array), sink)
        await sink.final.wait()
        [response] = sink.got
        assert (response.id, response.model_version, response.final, response.error) == ("r", 1, True, None)
        assert response.outputs[0].array.dtype == np.float32
        assert np.array_equal(response.outputs[0].array, array)
        assert not response.outputs[0].array.flags.writeable


async def test_shared_memory_is_free_again_after_its_last_view() -> None:
    async with both_sides() as sides:
        sink = Sink()
        for _ in range(3):
            submit_to(sides.services.inference, request(np.zeros((1, 1_000_000), np.float32)), sink)
        await trio.testing.wait_all_tasks_blocked()
        view = sink.got[0].outputs[0].array[:, 5:9]
        sink.got.clear()
        sides.fakes.inference.submitted.clear()
        gc.collect()
        await trio.testing.wait_all_tasks_blocked()
        assert sides.engine.shared_bytes == 0
        assert sides.session.shared_bytes == 4_001_792
        del view
        await trio.testing.wait_all_tasks_blocked()
        assert sides.session.shared_bytes == 0


async def test_bytes_tensors_keep_their_elements() -> None:
    elements = [b"", b"a", b"\x00\xff", b"x" * 70_000, "ä".encode()]
    array = np.empty((5, 1), object)
    array[:, 0] = elements
    async with both_sides() as sides:
        for rows in (array, array[:3], array[:0]):
            sink = Sink()
            asked = msgspec.structs.replace(
                request(np.zeros(0, np.float32), "text"), inputs=(Tensor("INPUT0", DataType.BYTES, rows),)
            )
            submit_to(sides.services.inference, asked, sink)
            await trio.testing.wait_all_tasks_blocked()
            assert sink.got[0].outputs[0].array.tolist() == rows.tolist()


LONG = {
    "one": lambda: [b"x" * 60_000_000],
    "some": lambda: [b"a" * 2_000_000, b"", b"b" * 3_000_000, b"c"],
    "many": lambda: [b"%d" % number for number in range(1_000_000)],
    "mixed": lambda: [*[b"a" * 100_000] * 50, *[b""] * 3_000],
}


@pytest.fixture(params=LONG.values(), ids=LONG)
def long(request: pytest.FixtureRequest) -> np.ndarray[Any, Any]:
    """Strings that are too long for the loop."""
    return np.array(request.param(), object)


def with_input(array: np.ndarray[Any, Any]) -> InferenceRequest:
    asked = request(np.zeros(0, np.float32), "text")
    return msgspec.structs.replace(asked, inputs=(Tensor("INPUT0", DataType.BYTES, array),))


async def test_long_strings_hold_up_no_loop_and_nothing_passes_them(long: np.ndarray[Any, Any], loop_guard: LoopGuard) -> None:
    """60 MB were 80 ms of each of the two loops."""
    async with both_sides() as sides:
        sink, other = Sink(), Sink()
        submit_to(sides.services.inference, with_input(long), sink)
        submit_to(sides.services.inference, request(np.ones((1, 1), np.float32)), other)
        await sink.final.wait()
        await other.final.wait()
        assert [response.error for response in sink.got + other.got] == [None, None]
        assert await trio.to_thread.run_sync(np.array_equal, sink.got[0].outputs[0].array, long)
        assert [each.request.model_name for each in sides.fakes.inference.submitted] == ["text", "m"]
        sink.got.clear()
        sides.fakes.inference.submitted.clear()
        gc.collect()
        await trio.testing.wait_all_tasks_blocked()
        assert sides.engine.shared_bytes == sides.session.shared_bytes == 0


async def test_many_empty_strings_in_several_tensors_hold_up_no_loop(loop_guard: LoopGuard) -> None:
    """They have few bytes; eight tensors of a million, from one region of 4 MiB, were 130 ms of each of the two loops."""
    sink, asked = Sink(), with_input(np.full(1_000_000, b"", object))
    asked = msgspec.structs.replace(asked, inputs=asked.inputs * 6)
    async with both_sides() as sides:
        submit_to(sides.services.inference, asked, sink)
        await sink.final.wait()
        assert [tensor.array.size for tensor in sink.got[0].outputs] == [1_000_000] * 6


async def test_a_long_request_that_cannot_be_sent_is_refused_and_the_next_one_is_not() -> None:
    array = np.array([["text"], [b"x" * 5_000_000]], object)
    wrong = with_input(array)
    async with both_sides() as sides:
        sink, cancelled, other = Sink(), Sink(), Sink()
        submit_to(sides.services.inference, wrong, sink)
        submit_to(sides.services.inference, wrong, cancelled).cancel()
        submit_to(sides.services.inference, request(np.ones((1, 1), np.float32)), other)
        await sink.final.wait()
        await other.final.wait()
        [response] = sink.got
        assert isinstance(response.error, InvalidArgument)
        assert "tensor 'INPUT0' holds a str, expected bytes" in response.error.message
        assert response.refused
        assert other.got[0].error is None
        assert cancelled.got == []
        assert sides.engine.pending_requests == sides.session.open_requests == sides.engine.shared_bytes == 0


async def test_a_long_response_that_has_no_form_is_an_error_behind_which_others_come() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.immediate = False
        sink, other = Sink(), Sink()
        for each in (sink, other):
            submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), each)
        await trio.testing.wait_all_tasks_blocked()
        wrong = Tensor("OUTPUT0", DataType.BYTES, np.array(["text", b"x" * 5_000_000], object))
        for submitted, outputs in zip(sides.fakes.inference.submitted, ((wrong,), ()), strict=True):
            submitted.sink.deliver(InferenceResponse(model_name="m", model_version=1, outputs=outputs))
        await other.final.wait()
        assert isinstance(sink.got[0].error, Internal)
        assert other.got[0].error is None
        assert sides.session.shared_bytes == 0


async def test_a_response_that_has_no_form_is_an_error_and_leaves_nothing() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.immediate = False
        sink = Sink()
        submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), sink)
        await trio.testing.wait_all_tasks_blocked()
        large = Tensor("L", DataType.UINT8, np.zeros(100_000, np.uint8))
        wrong = Tensor("OUTPUT0", DataType.BYTES, np.array(["text"], object))
        answer = InferenceResponse(model_name="m", model_version=1, outputs=(large, wrong))
        sides.fakes.inference.submitted[0].sink.deliver(answer)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sink.got[0].error, Internal)
        assert "tensor 'OUTPUT0' holds a str, expected bytes" in sink.got[0].error.message
        assert sides.session.shared_bytes == 0


async def test_a_refusal_on_arrival_arrives_as_one() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.raises = full = Unavailable("Exceeds maximum queue size")
        full.wait_s = 7
        sink = Sink()
        submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), sink)
        assert sink.got == []
        await trio.testing.wait_all_tasks_blocked()
        [response] = sink.got
        assert (type(response.error), response.refused, response.final) == (Unavailable, True, True)
        assert response.error is not None
        assert response.error.wait_s == 7
        assert sides.engine.pending_requests == sides.session.open_requests == 0


async def test_a_bug_on_arrival_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with both_sides() as sides:
        sides.fakes.inference.raises = RuntimeError("a secret")
        sink = Sink()
        submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), sink)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sink.got[0].error, Internal)
        assert "secret" not in sink.got[0].error.message


async def test_a_request_that_has_no_form_is_refused_at_once() -> None:
    async with both_sides() as sides:
        for bad in (
            msgspec.structs.replace(request(np.zeros((1, 1), np.float32)), id="\ud800"),
            msgspec.structs.replace(request(np.zeros((1, 100_000), np.float32)), parameters={"n": 2**64}),
        ):
            with pytest.raises(InvalidArgument, match="the request cannot be passed on to the engine"):
                submit_to(sides.services.inference, bad, Sink())
        assert sides.engine.pending_requests == sides.engine.shared_bytes == 0


async def test_a_response_parameter_that_no_protocol_carries_is_named() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.immediate = False
        sink = Sink()
        submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), sink)
        await trio.testing.wait_all_tasks_blocked()
        submitted = sides.fakes.inference.submitted[0]
        submitted.sink.deliver(InferenceResponse(model_name="m", model_version=1, parameters={"a": 1, "n": 2**64}))
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sink.got[0].error, Internal)
        assert sink.got[0].error.message == "response parameter 'n' is an integer of more than 64 bits"


async def test_cancel_reaches_the_engine() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.immediate = False
        sink = Sink()
        handle = submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), sink)
        await trio.testing.wait_all_tasks_blocked()
        handle.cancel()
        handle.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert sides.fakes.inference.submitted[0].cancelled
        assert sides.session.open_requests == 0
        assert sink.got == []


async def test_a_process_that_goes_away_has_its_requests_cancelled() -> None:
    fakes = FakeServices()
    fakes.inference.immediate = False
    async with both_sides(fakes) as sides:
        for _ in range(3):
            submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32)), Sink())
        await trio.testing.wait_all_tasks_blocked()
    assert [submitted.cancelled for submitted in fakes.inference.submitted] == [True, True, True]


async def test_a_slow_reader_pauses_its_model_and_no_other() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.immediate = False
        slow, fast = Sink(), Sink()
        handle = submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32), "flow"), slow)
        submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32), "flow"), fast)
        await trio.testing.wait_all_tasks_blocked()
        handle.pause()
        first, second = sides.fakes.inference.submitted
        for number in range(4 * REMOTE_WINDOW_RESPONSES):
            for model in (first, second):
                if not model.paused:
                    model.sink.deliver(InferenceResponse(model_name="flow", model_version=1, id=str(number), final=False))
            await trio.testing.wait_all_tasks_blocked()
        assert first.paused
        assert not second.paused
        assert slow.got == []
        assert len(fast.got) == 4 * REMOTE_WINDOW_RESPONSES
        handle.resume()
        await trio.testing.wait_all_tasks_blocked()
        assert [response.id for response in slow.got] == [str(number) for number in range(REMOTE_WINDOW_RESPONSES)]
        assert not first.paused


async def test_an_error_overtakes_what_a_slow_reader_has_not_taken() -> None:
    async with both_sides() as sides:
        sides.fakes.inference.immediate = False
        sink = Sink()
        handle = submit_to(sides.services.inference, request(np.zeros((1, 1), np.float32), "flow"), sink)
        await trio.testing.wait_all_tasks_blocked()
        handle.pause()
        [model] = sides.fakes.inference.submitted
        model.sink.deliver(InferenceResponse(model_name="flow", model_version=1, final=False))
        model.sink.deliver(InferenceResponse(model_name="flow", model_version=1, error=Unavailable("too late")))
        await trio.testing.wait_all_tasks_blocked()
        assert [response.error is not None for response in sink.got] == [True]


async def test_changes_are_known_before_a_load_call_returns() -> None:
    fakes = FakeServices()
    async with both_sides(fakes) as sides:

        async def index(*, ready_only: bool = False) -> list[IndexEntry]:
            return [IndexEntry(name="later", version=1, state=ModelState.READY)]

        with pytest.raises(NotFound):
            sides.services.inference.resolve("later")
        fakes.inference.models["later"] = describe("later")
        fakes.repository.index = index  # type: ignore[method-assign]  # another repository from now on
        seen = await sides.services.readiness.wait_changed(-1)  # type: ignore[union-attr]  # it has one
        await sides.services.repository.load(LoadRequest(model_name="later"))
        assert sides.services.inference.resolve("later").description == describe("later")
        assert said(sides.services, "resolve", "m") == (NotFound, "Request for unknown model: 'm' is not found")
        assert await sides.services.readiness.wait_changed(seen) > seen  # type: ignore[union-attr]  # it has one


async def test_a_call_that_is_given_up_is_cancelled_at_the_engine() -> None:
    async with both_sides() as sides:
        sides.fakes.repository.gate = trio.Event()
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(sides.services.repository.load, LoadRequest(model_name="m"))
                await sides.fakes.repository.load_began.wait()
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert sides.fakes.repository.loads == []
        assert await sides.services.repository.model_ready("m") is True


async def test_a_call_that_is_answered_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_side, "REMOTE_CALLS_MAX", 4)
    async with both_sides() as sides:
        for _ in range(6):
            assert await sides.services.repository.model_ready("m")


async def test_regions_in_a_gpus_memory_are_the_engines() -> None:
    fakes = FakeServices()
    client, server = FakeDevice(0), FakeDevice(0)
    registry = fakes.shared_memory = RegionRegistry(Devices([server]))
    memory = client.allocate(3 * MIB)
    handle = client.export_ipc(memory.address).handle
    async with both_sides(fakes) as sides:
        here = sides.services.shared_memory
        await here.register(CudaRegistration(name="r", raw_handle=handle, device_id=0, byte_size=3 * MIB))
        region = here.regions["r"]
        assert region.facts == registry.regions["r"].facts
        values = np.arange(MIB, dtype=np.uint16)
        await trio.to_thread.run_sync(region.write, 8, values.view(np.uint8).data)
        assert np.array_equal((await trio.to_thread.run_sync(region.read, 8, 2 * MIB)).view(np.uint16), values)
        assert (server.counts["in"], server.counts["out"]) == (2, 2)
        number = region.number  # type: ignore[attr-defined]  # not every Region has one
        for wrong, size, error in ((q.RegionOffset(number, 8), 3 * MIB, InvalidArgument), (q.RegionOffset(99, 0), 1, NotFound)):
            with pytest.raises(error):
                await sides.engine.ask(q.ReadRegion(wrong, size), bytes)
        await here.unregister(RegionKind.CUDA, "r")
        assert "r" not in here.regions
        assert bytes(await trio.to_thread.run_sync(region.read, 8, 4)) == bytes(values[:2]), "whoever has it still uses it"
        assert server.counts["opened"] == 1
        del region
        with trio.fail_after(5):
            while server.counts["opened"]:
                gc.collect()
                await trio.sleep(0.001)


async def test_observed_requests_tell_whom_they_came_from_and_how_they_ended() -> None:
    async with both_sides() as sides:
        observers, watcher = sides.services.observers, Finished()
        assert not observers.active
        sides.fakes.observers.add(watcher)
        await sides.publisher.publish()
        assert observers.active
        refused, submitted, lost = (
            observers.open("http", model=name, peer="[::1]:5", headers={"traceparent": name}, begun_ns=1, received_ns=2)
            for name in ("x", "m", "m")
        )
        assert refused is not None
        assert submitted is not None
        assert lost is not None
        refused.finish(9, "Not found", "no")
        model = sides.services.inference.resolve("m")
        model.submit(msgspec.structs.replace(request(np.zeros(1, np.float32)), record=submitted), Sink())
        model.submit(msgspec.structs.replace(request(np.zeros(1, np.float32)), record=lost), Sink())
        await trio.testing.wait_all_tasks_blocked()
        submitted.finish(10, response_bytes=7)
        await trio.testing.wait_all_tasks_blocked()
        sides.fakes.observers.discard(watcher)
        await sides.publisher.publish()
        assert not observers.active
    assert watcher.shown == [("http", "x", "Not found", "no"), ("http", "m", "", ""), ("http", "m", "Cancelled", "")]
    told = watcher.records[1]
    assert (told.peer, told.headers, told.begun_ns, told.received_ns) == ("[::1]:5", {"traceparent": "m"}, 1, 2)
    assert (told.finished_ns, told.response_bytes) == (10, 7)
    assert sides.fakes.inference.submitted[-1].request.record is watcher.records[2]
