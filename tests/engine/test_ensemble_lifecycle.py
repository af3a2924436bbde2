"""An ensemble comes and goes with its members, and recovers without being touched."""

from __future__ import annotations

import itertools
import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tpy.backend import ModelContext
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, NotFound, Unavailable
from tpy.limits import ENSEMBLE_NESTING_MAX
from tpy.messages import DataType
from tpy_data.engine.runtimes.ensemble_runtime import EnsembleRuntime

from .ensembles import CHAIN, DECOUPLED, MembersBackend, ensemble, inputs, outputs, plus, serve_all, step, submit
from .fakes import Rig, config, rig

READY = ("READY", "")
UNLOADED = ("UNAVAILABLE", "unloaded")


def state(r: Rig, model: str = "e", generation: int = 1) -> tuple[str, str]:
    return r.states(model)[(1, generation)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
async def test_in_whatever_order_they_come(order: tuple[int, ...]) -> None:
    configs = (config("a"), config("b"), CHAIN)
    async with rig(backend=MembersBackend()) as r:
        for number in order:
            r.want(configs[number])
            await wait_all_tasks_blocked()
        assert state(r) == READY
        assert submit(r).responses == []
        await wait_all_tasks_blocked()


async def test_it_loads_as_long_as_a_member_does(autojump_clock: MockClock) -> None:
    async with rig(backend=MembersBackend(), load_ms=20) as r:
        for each in (config("a"), config("b"), CHAIN):
            r.want(each)
        await trio.sleep(0.03)
        assert state(r)[0] == "LOADING"
        await trio.sleep(1)
        assert state(r) == READY


async def test_a_member_goes_and_comes_back() -> None:
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN, ensemble("outer", step("e", "IN", "OUT")))
        r.want(config("b"), versions=())
        await wait_all_tasks_blocked()
        assert (state(r), state(r, "outer")) == (UNLOADED, UNLOADED)
        with pytest.raises(NotFound, match="Request for unknown model: 'e' has no available versions"):
            submit(r)
        with pytest.raises(Unavailable, match="Request for unknown model: 'e' version 1 is not at ready state"):
            submit(r, model_version=1)
        await r.serve(config("b"))
        assert (state(r), state(r, "outer")) == (READY, READY)
        stream = submit(r, "outer")
        await wait_all_tasks_blocked()
        assert stream.values == [1]


async def test_requests_end_with_the_members_that_they_began_with(autojump_clock: MockClock) -> None:
    backend = MembersBackend()
    async with rig(backend=backend, latency_ms=10) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r)
        await trio.sleep(0.005)
        for name in ("a", "b", "e"):
            r.want(config(name) if name != "e" else CHAIN, versions=())
        await trio.sleep(0.0001)
        assert {state(r, name)[0] for name in "ab"} == {"UNLOADING"}
        assert ("b", 1, 1) in backend.loaded, "the request has not come to it yet"
        await trio.sleep(1)
        assert stream.values == [1]
        assert not backend.loaded
        assert {state(r, name) for name in "abe"} == {UNLOADED}


async def test_an_updated_member_takes_the_requests_that_begin_later(autojump_clock: MockClock) -> None:
    backend = MembersBackend({"b": plus(10)})
    async with rig(backend=backend, latency_ms=10) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        before = submit(r)
        await trio.sleep(0.001)
        await r.serve(config("b"))
        after = submit(r)
        assert len(backend.loaded) == 3
        await trio.sleep(1)
        assert (before.values, after.values) == ([11], [11])
        assert sorted(backend.loaded) == [("a", 1, 1), ("b", 1, 2)]
        assert state(r) == READY


async def test_a_member_that_does_not_fit_any_more_and_then_does() -> None:
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        await r.serve(config("b", input=inputs("IN", data_type=DataType.INT32)))
        assert state(r) == (
            "UNAVAILABLE",
            (
                "Invalid argument: in ensemble e, ensemble tensor A: inconsistent data type: TYPE_FP32 is inferred from model a "
                "while TYPE_INT32 is inferred from model b"
            ),
        )
        await r.serve(config("b", model_transaction_policy=DECOUPLED))
        assert state(r) == READY
        assert r.plane.inference.config("e").decoupled


async def test_a_member_that_cannot_be_loaded() -> None:
    backend = MembersBackend()

    def refuse(context: ModelContext) -> None:
        if context.name == "b" and context.generation == 1:
            raise InvalidArgument("no weights")

    backend.on_load = refuse
    async with rig(backend=backend) as r:
        for each in (config("a"), config("b"), CHAIN, ensemble("outer", step("e", "IN", "OUT"))):
            r.want(each)
        await wait_all_tasks_blocked()
        why = (
            "ensemble 'e' depends on 'b' which has no loaded version. Model 'b' loading failed with error: version 1 is at "
            "UNAVAILABLE state: Invalid argument: no weights;"
        )
        assert state(r) == ("UNAVAILABLE", f"Invalid argument: {why}")
        outer = f"ensemble 'outer' depends on 'e' which is not valid. Model 'e' failed with error: {why}"
        assert state(r, "outer") == ("UNAVAILABLE", f"Invalid argument: {outer}")
        await r.serve(config("b"))
        assert (state(r), state(r, "outer")) == (READY, READY)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (ensemble("e", step("nobody", "IN", "OUT")), "ensemble e contains models that are not available or ambiguous: nobody"),
        (ensemble("e", step("a", "IN", "OUT", 0)), "ensemble 'e' depends on 'a' whose required version 0 is not loaded."),
        (ensemble("e", step("e", "IN", "OUT")), "circular dependency between ensembles: e -> ... -> e -> e"),
        (
            ensemble("e", step("a", "IN", "OUT"), max_batch_size=9),
            "ensemble e allows maximum batch size 9, but it contains model a which only allows maximum batch size to be 8",
        ),
        (
            ensemble("e", step("a", "IN", "OUT"), input=inputs("IN", dims=(3,))),
            (
                "in ensemble e, ensemble tensor IN: inconsistent shape: [-1,3] is inferred from model e while [-1,2] is inferred "
                "from model a"
            ),
        ),
        (
            ensemble("e", step("two", {"IN0": "IN"}, {"OUT0": "OUT"})),
            "in ensemble e, input IN1 in model two is not mapped to any ensemble tensors",
        ),
        (
            ensemble("e", step("a", {"IN": "IN", "X": "IN"}, "OUT")),
            "in ensemble e, ensemble tensor IN is mapping to non-existing input X in model a",
        ),
        (
            ensemble("e", step("a", "IN", {"X": "OUT"})),
            "in ensemble e, ensemble tensor OUT is mapped from non-existing output X in model a",
        ),
        (
            ensemble("e", step("d1", "IN", "A"), step("d2", "IN", "B"), step("two", {"IN0": "A", "IN1": "B"}, {"OUT0": "OUT"})),
            "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
        ),
        (
            ensemble("e", step("d1", "IN", "OUT"), step("a", "IN", "OTHER"), output=outputs("OUT", "OTHER")),
            "in ensemble e, step of model 'e' receives inputs originated from different decoupled models",
        ),
    ],
)
async def test_ensembles_that_contradict_their_members(wrong: ModelConfig, why: str) -> None:
    async with rig(backend=MembersBackend()) as r:
        two = config("two", input=inputs("IN0", "IN1"), output=outputs("OUT0", "OUT1"))
        decoupled = [config(name, model_transaction_policy=DECOUPLED) for name in ("d1", "d2")]
        await serve_all(r, config("a"), two, *decoupled)
        r.want(wrong)
        await wait_all_tasks_blocked()
        assert state(r) == ("UNAVAILABLE", f"Invalid argument: {why}")


async def test_circles_and_towers_of_ensembles() -> None:
    async with rig(backend=MembersBackend()) as r:
        await r.serve(config("a"))
        r.want(ensemble("x", step("y", "IN", "OUT")))
        r.want(ensemble("y", step("x", "IN", "OUT")))
        names = ["a", *(f"e{level}" for level in range(1, ENSEMBLE_NESTING_MAX + 2))]
        for below, name in itertools.pairwise(names):
            r.want(ensemble(name, step(below, "IN", "OUT")))
        await wait_all_tasks_blocked()
        assert state(r, "x")[1] == "Invalid argument: circular dependency between ensembles: x -> ... -> y -> x"
        assert state(r, names[-2]) == READY
        assert "nests ensembles 17 deep; at most 16 are allowed" in state(r, names[-1])[1]
        stream = submit(r, names[-2])
        await wait_all_tasks_blocked()
        assert stream.values == [1]


async def test_a_new_configuration_that_fails_leaves_the_old_one_in_service() -> None:
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        r.want(ensemble("e", step("nobody", "IN", "OUT")))
        await wait_all_tasks_blocked()
        assert r.states("e")[(1, 1)] == READY
        assert r.states("e")[(1, 2)][0] == "UNAVAILABLE"
        stream = submit(r)
        await r.serve(ensemble("e", step("a", "IN", "OUT")))
        await wait_all_tasks_blocked()
        assert stream.values == [1]
        assert r.states("e") == {(1, 3): READY}


async def test_the_end_of_the_server_finishes_what_is_on_its_way(autojump_clock: MockClock) -> None:
    async with rig(backend=MembersBackend(), latency_ms=10) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r)
    assert stream.values == [1]
    async with rig(backend=MembersBackend(), latency_ms=1000, exit_timeout_ms=100) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r)
    assert len(stream.errors) == 1


async def test_an_unloaded_ensemble_is_not_notified_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[EnsembleRuntime] = []
    reconsider = EnsembleRuntime.reconsider

    def record(runtime: EnsembleRuntime) -> None:
        told.append(runtime)
        reconsider(runtime)

    monkeypatch.setattr(EnsembleRuntime, "reconsider", record)
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        told.clear()
        await r.serve(config("a"))
        assert told
        r.want(CHAIN, versions=())
        await wait_all_tasks_blocked()
        assert state(r) == UNLOADED
        told.clear()
        await r.serve(config("a"))
        await r.serve(config("b"))
        assert not told


async def test_only_loaded_ensembles_are_logged_as_unloaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        r.want(ensemble("never", step("missing", "IN", "OUT")))
        await wait_all_tasks_blocked()
        for name in ("never", "e"):
            r.want(ensemble(name, step("missing", "IN", "OUT")), versions=())
        await wait_all_tasks_blocked()
        unloaded = [record.getMessage() for record in caplog.records if "unloaded" in record.getMessage()]
        assert unloaded == ["successfully unloaded 'e' version 1"]
