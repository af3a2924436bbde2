"""Live sequences when their model is updated, unloaded, or the server stops. All in virtual time."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tpy.config.model_config import ModelParameter
from tpy.errors import NotFound, TpyError, Unavailable
from tpy.messages import ModelState

from .ensembles import ensemble, serve_all, step
from .fakes import Rig, rig, values
from .sequences import STATE, direct, of, sequence_backend, sequence_config, summing

MODEL = sequence_config(direct(idle_ms=5000, state=(STATE,)))


async def begin(r: Rig) -> None:
    await r.serve(MODEL)
    assert values(await r.submit(of(1, 1, start=True)).wait()) == [1, 1]


@pytest.mark.parametrize("version", [None, 1])
async def test_a_sequence_stays_with_the_copy_that_it_began_in(autojump_clock: MockClock, version: int | None) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        await r.serve(MODEL)
        assert values(await r.submit(of(2, 5, start=True)).wait()) == [5, 5]
        assert values(await r.submit(of(1, 2, model_version=version)).wait()) == [3, 3]
        assert len(r.backend.loaded) == 2
        assert r.states()[1, 1][0] == "UNLOADING"
        assert values(await r.submit(of(1, 2, end=True)).wait()) == [5, 5]
        await wait_all_tasks_blocked()
        assert [generation for _, _, generation in r.backend.loaded] == [2]
        assert values(await r.submit(of(2, 5, end=True)).wait()) == [10, 10]
        with pytest.raises(TpyError, match="START flag"):
            r.submit(of(1))


async def test_a_sequence_stays_with_its_version_when_there_is_a_newer_one(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        r.want(MODEL, {1: 1, 2: 2})
        await r.wait_state(2, 2, ModelState.READY)
        assert (await r.submit(of(2, start=True)).wait()).model_version == 2
        answer = await r.submit(of(1, 2)).wait()
        assert (answer.model_version, values(answer)) == (1, [3, 3])
        with pytest.raises(TpyError, match="START flag"):
            r.submit(of(1, 2, model_version=2))
        r.want(MODEL, {2: 2})
        assert values(await r.submit(of(1, 2, end=True)).wait()) == [5, 5]
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)


@pytest.mark.parametrize("percent", [0, 100], ids=["no rollout", "rollout"])
async def test_a_sequence_of_an_ensemble_stays_with_its_version(autojump_clock: MockClock, percent: int) -> None:
    plan = ModelParameter(string_value=f'{{"steps": [{{"percent": {percent}, "seconds": 3600}}]}}')
    model = msgspec.structs.replace(MODEL, parameters={"rollout": plan} if percent else {})
    async with rig(backend=sequence_backend(summing)) as r:
        await serve_all(r, model, ensemble("e", step("m", "IN", "OUT")))
        assert values(await r.submit(of(1, 1, start=True, model="e")).wait()) == [1, 1]
        r.want(model, {1: 1, 2: 2})
        await r.wait_state(2, 2, ModelState.READY)
        assert values(await r.submit(of(2, 4, start=True, model="e")).wait()) == [4, 4]
        assert values(await r.submit(of(1, 2, model="e")).wait()) == [3, 3]
        assert values(await r.submit(of(2, 4, end=True, model="e")).wait()) == [8, 8]
        r.want(model, {2: 2})
        assert values(await r.submit(of(1, 2, end=True, model="e")).wait()) == [5, 5]
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)


async def test_a_start_goes_to_the_new_copy_and_the_old_sequence_is_left_to_its_idle_time(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        await r.serve(MODEL)
        assert values(await r.submit(of(1, 7, start=True)).wait()) == [7, 7]
        assert values(await r.submit(of(1, 1)).wait()) == [8, 8]
        await trio.sleep(5.1)
        assert len(r.backend.loaded) == 1


async def test_a_sequence_goes_on_while_its_model_is_unloaded(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        r.want(MODEL, ())
        await wait_all_tasks_blocked()
        assert r.plane.inference.resolve("m").description.name == "m"
        assert values(await r.submit(of(1, 2)).wait()) == [3, 3]
        for sent in (of(2, start=True), of(3), of(1, start=True)):
            with pytest.raises(NotFound, match="has no available versions"):
                r.submit(sent)
        assert values(await r.submit(of(1, 2, end=True)).wait()) == [5, 5]
        await wait_all_tasks_blocked()
        assert not r.backend.loaded
        with pytest.raises(NotFound):
            r.plane.inference.resolve("m")


async def test_an_unloaded_model_waits_no_longer_than_sequences_may_be_idle(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        r.want(MODEL, ())
        await trio.sleep(4.9)
        assert r.backend.loaded
        await trio.sleep(0.2)
        assert not r.backend.loaded


async def test_a_stopping_server_lets_live_sequences_end(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        r.plane.stop_accepting()
        with pytest.raises(Unavailable, match="Server is stopping"):
            r.submit(of(2, start=True))
        over: list[float] = []

        async def wait_over() -> None:
            await r.plane.wait_sequences_over()
            over.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_over)
            assert values(await r.submit(of(1, 2)).wait()) == [3, 3]
            await trio.sleep(1)
            assert not over
            assert values(await r.submit(of(1, 2, end=True)).wait()) == [5, 5]
            ended = trio.current_time()
        assert over == [ended]


async def test_a_draining_server_begins_no_sequence(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(summing)) as r:
        await begin(r)
        assert r.plane.begin_drain()
        for sequence in (1, 2):
            with pytest.raises(Unavailable, match="Server is stopping"):
                r.submit(of(sequence, start=True))
        assert values(await r.submit(of(1, 2, end=True)).wait()) == [3, 3]
        assert not r.plane.begin_drain()


async def test_the_end_of_the_data_plane_waits_for_no_further_requests(autojump_clock: MockClock) -> None:
    backend = sequence_backend(summing)
    async with rig(backend=backend) as r:
        await begin(r)
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert not backend.loaded
