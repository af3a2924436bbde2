"""Rollouts of a data plane: which version answers while versions come and go, and what is counted. All in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tpy.backend import BackendCapabilities, ExecutionBatch, ExecutionResult, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter, TransactionPolicy
from tpy.errors import AmbiguousName, Internal, InvalidArgument, NotFound, TpyError, Unavailable
from tpy.ids import Generation, ModelId, Version
from tpy.messages import ModelState
from tpy.state import ObservedKey

from .fakes import Rig, ScriptedBackend, config, instances, request, rig
from .sequences import STATE, direct, of, sequence_backend, sequence_config, summing

STEPS = [{"percent": 50, "seconds": 3600}, {"percent": 60, "seconds": 3600}]


def with_plan(model: ModelConfig, **plan: Any) -> ModelConfig:
    text = json.dumps({"steps": STEPS, "min_requests": 20} | plan)
    return msgspec.structs.replace(model, parameters={"rollout": ModelParameter(string_value=text)})


MODEL = with_plan(config(max_batch_size=4))


async def versions_of(r: Rig, count: int) -> list[int]:
    """The versions that answered."""
    return [(await r.submit().wait()).model_version for _ in range(count)]


def remark(r: Rig, version: int, generation: int) -> str:
    """The one that the index has."""
    return r.store.snapshot().observed[ObservedKey(ModelId("m", ""), Version(version), Generation(generation))].remark


class Completing(ScriptedBackend):
    """Fills in what the files of one version say."""

    capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake", decoupled=True, ragged=True)

    def __init__(self, complete: Callable[[ModelConfig], ModelConfig], version: int = 2) -> None:
        super().__init__()
        self._complete = complete
        self._version = version

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return self._complete(context.config) if context.version == self._version else context.config


def changed(model: ModelConfig, **changes: Any) -> ModelConfig:
    return msgspec.structs.replace(model, **changes)


def input_changed(model: ModelConfig, **changes: Any) -> ModelConfig:
    return changed(model, input=(msgspec.structs.replace(model.input[0], **changes),))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({}, {"model_transaction_policy": TransactionPolicy(decoupled=True)}, "it is decoupled, the old version is not"),
        ({"model_transaction_policy": TransactionPolicy(decoupled=True)}, {}, "the old version is decoupled, it is not"),
        ({}, {"max_batch_size": 2}, "its max_batch_size is 2, that of the old version is 4"),
        ({}, {"max_batch_size": 0}, "its max_batch_size is 0, that of the old version is 4"),
        ({}, {"max_batch_size": 8}, ""),
        ({"optional": True}, {"optional": False}, "its inputs are not those of the old version: 'IN' is not optional any more"),
        ({"optional": False}, {"optional": True}, ""),
        (
            {"allow_ragged_batch": True},
            {"allow_ragged_batch": False},
            "its inputs are not those of the old version: 'IN' has no allow_ragged_batch any more",
        ),
    ],
)
async def test_versions_that_differ_share_no_requests(
    autojump_clock: MockClock, old: Mapping[str, Any], new: Mapping[str, Any], reason: str
) -> None:
    change = input_changed if {"optional", "allow_ragged_batch"} & {*old, *new} else changed
    new = {"model_transaction_policy": None, **new} if "model_transaction_policy" in old else new
    async with rig(backend=Completing(lambda config: change(config, **new))) as r:
        model = change(MODEL, **old)
        await r.serve(model)
        r.want(model, {1: 1, 2: 2})
        await r.wait_state(2, 2, ModelState.READY)
        status = r.plane.rollouts.status("m")
        assert (status.reason, status.percent) == (reason, 0 if reason else 50)
        if not model.decoupled:
            assert await versions_of(r, 4) == ([1, 1, 1, 1] if reason else [1, 2, 1, 2])


def kept(folder: Path, **line: Any) -> Path:
    file = folder / "rollouts.json"
    file.write_text(json.dumps({"m": {"version": 1, "new": 2} | line}))
    return file


def slow_old() -> ScriptedBackend:
    """The instance of version 1 has a name, and takes a minute."""
    named = msgspec.structs.replace(instances(1)[0], name="slow")
    return Completing(lambda config: changed(config, instance_group=(named,)), version=1)


def loading_ms(worker: str) -> int:
    return 60_000 if worker.startswith("slow") else 20


@pytest.mark.parametrize(
    ("line", "then"),
    [
        ({"state": "rolled back", "reason": "bad"}, [1, 1, 1, 1]),
        ({"state": "running", "step": 1}, [1, 2, 1, 2, 2]),
        ({"new": 0}, [1, 2, 1, 2]),
    ],
    ids=["rolled back", "running", "not begun"],
)
async def test_none_answers_while_the_old_version_is_still_loading(
    autojump_clock: MockClock, tmp_path: Path, line: Mapping[str, Any], then: list[int]
) -> None:
    async with rig(backend=slow_old(), load_ms=loading_ms, rollout_file=kept(tmp_path, **line)) as r:
        r.want(MODEL, {1: 1, 2: 1})
        await r.wait_state(2, 1, ModelState.READY)
        for _ in range(3):
            with pytest.raises(Unavailable, match="version 1 is not at ready state"):
                r.submit()
            await trio.sleep(5)
        assert (await r.submit(request(model_version=2)).wait()).model_version == 2
        await r.wait_state(1, 1, ModelState.READY)
        assert await versions_of(r, len(then)) == then


async def test_the_new_version_answers_when_the_old_one_failed_to_load(autojump_clock: MockClock, tmp_path: Path) -> None:
    backend = slow_old()

    def fails(placement: InstancePlacement) -> None:
        if placement.name.startswith("slow"):
            raise Internal("made to fail")

    backend.on_create = fails
    async with rig(backend=backend, load_ms=loading_ms, rollout_file=kept(tmp_path, state="rolled back", reason="bad")) as r:
        r.want(MODEL, {1: 1, 2: 1})
        await r.wait_state(2, 1, ModelState.READY)
        with pytest.raises(Unavailable):
            r.submit()
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)
        await r.store.wait_for(lambda _: remark(r, 2, 1) == "version 1 is not available, so it gets all requests")
        assert await versions_of(r, 2) == [2, 2]
        backend.on_create = lambda placement: None
        r.want(MODEL, {1: 2, 2: 1})
        await r.wait_state(1, 2, ModelState.LOADING)
        assert await versions_of(r, 2) == [2, 2], "it goes on answering while the old one is tried again"
        await r.wait_state(1, 2, ModelState.READY)
        assert await versions_of(r, 2) == [1, 1]
        await r.store.wait_for(lambda _: remark(r, 2, 1) == "rolled back: bad")


async def begin(r: Rig, **fields: Any) -> None:
    """Load version 2 beside version 1."""
    await r.serve(MODEL)
    generation = r.want(MODEL, {1: 1, 2: 2}, **fields)
    await r.wait_state(2, generation, ModelState.READY)


@pytest.mark.parametrize("has_file", [False, True])
async def test_a_rollback_outlives_an_unload(autojump_clock: MockClock, tmp_path: Path, has_file: bool) -> None:
    file = tmp_path / "rollouts.json"
    async with rig(rollout_file=file if has_file else None) as r:
        await begin(r)
        r.plane.rollouts.roll_back("m")
        for generation, content in ((3, ""), (5, "other")):
            r.want(MODEL, ())
            await r.store.wait_for(lambda _: all(state == "UNAVAILABLE" for state, _ in r.states().values()))
            with pytest.raises(NotFound):
                r.plane.rollouts.status("m")
            r.want(MODEL, {1: generation, 2: generation}, content=content)
            await r.wait_state(1, generation, ModelState.READY)
            await r.wait_state(2, generation, ModelState.READY)
            assert await versions_of(r, 4) == ([1, 2, 1, 2] if content else [1, 1, 1, 1])
        line = {"version": 1, "new": 2, "step": 0, "state": "running", "reason": "", "format": 1}
        while has_file and (not file.exists() or json.loads(file.read_text())["m"] != line):
            await trio.lowlevel.checkpoint()  # a thread writes it


@pytest.mark.parametrize("state", ["rolled back", "running"])
async def test_a_change_of_the_configuration_only_goes_on_with_what_was_decided(autojump_clock: MockClock, state: str) -> None:
    async with rig() as r:
        await served(r, MODEL, 1, 1)
        for generation in (2, 3, 4):
            await served(r, changed(MODEL, max_batch_size=4 + generation), generation, 1, 2)
            if generation == 2 and state == "rolled back":
                r.plane.rollouts.roll_back("m")
            assert await versions_of(r, 4) == ([1, 1, 1, 1] if state == "rolled back" else [1, 2, 1, 2])
            assert r.plane.rollouts.status("m").state == state
        await r.store.wait_for(lambda _: bool(remark(r, 2, 4)))
        assert remark(r, 2, 4) == ("rolled back: as asked" if state == "rolled back" else "rollout: it gets 50 % of the requests")
        other = with_plan(changed(MODEL, max_batch_size=9), steps=[{"percent": 25, "seconds": 3600}])
        await served(r, other, 5, 1, 2)
        assert await versions_of(r, 4) == ([1, 1, 1, 1] if state == "rolled back" else [1, 1, 1, 2])
        assert r.plane.rollouts.start("m").percent == 25
        r.plane.rollouts.roll_back("m")
        r.want(MODEL, {1: 6, 2: 6}, content="other")
        for version in (1, 2):
            await r.wait_state(version, 6, ModelState.READY)
        assert await versions_of(r, 4) == [1, 2, 1, 2], "its files have changed"


async def test_a_running_rollout_keeps_its_step_when_the_configuration_changes(autojump_clock: MockClock) -> None:
    model = with_plan(MODEL, min_requests=2, steps=[{"percent": 50, "seconds": 10}, {"percent": 100, "seconds": 3600}])
    async with rig() as r:
        await served(r, model, 1, 1)
        await served(r, model, 2, 1, 2)
        await versions_of(r, 4)
        await trio.sleep(20)
        assert r.plane.rollouts.status("m").step == 2
        await served(r, changed(model, max_batch_size=5), 3, 1, 2)
        assert r.plane.rollouts.status("m").step == 2
        await served(r, with_plan(model), 4, 1, 2)
        assert r.plane.rollouts.status("m").step == 1, "another plan begins anew"


async def test_a_version_that_is_gone_is_not_rolled_out(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await begin(r)
        r.plane.rollouts.roll_back("m")
        r.want(MODEL, {1: 1})
        await r.wait_state(2, 2, ModelState.UNAVAILABLE)
        for action in (r.plane.rollouts.status, r.plane.rollouts.promote):
            with pytest.raises(NotFound, match="no version of model 'm' is rolled out"):
                action("m")
        assert await versions_of(r, 2) == [1, 1]
        r.want(MODEL, {1: 1, 2: 3})
        await r.wait_state(2, 3, ModelState.READY)
        assert await versions_of(r, 4) == [1, 2, 1, 2]


async def test_sequences_count_for_the_version_that_answers_them(autojump_clock: MockClock) -> None:
    model = with_plan(sequence_config(direct(idle_ms=5000, state=(STATE,))), steps=[{"percent": 100, "seconds": 3600}])
    async with rig(backend=sequence_backend(summing)) as r:
        await r.serve(model)
        await r.submit(of(1, 1, start=True)).wait()
        r.want(model, {1: 1, 2: 2})
        await r.wait_state(2, 2, ModelState.READY)
        for _ in range(3):
            assert (await r.submit(of(1, 1)).wait()).model_version == 1
        assert (await r.submit(of(2, 1, start=True)).wait()).model_version == 2
        status = r.plane.rollouts.status("m")
        assert (status.old.ended, status.new.ended) == (3, 1)


async def test_a_request_that_began_before_the_step_does_not_count(autojump_clock: MockClock) -> None:
    def fails(batch: ExecutionBatch) -> list[ExecutionResult]:
        raise Internal("made to fail")

    async with rig(backend=ScriptedBackend(fails), latency_ms=1000) as r:
        await begin(r)
        sinks = [r.submit() for _ in range(2)]
        r.plane.rollouts.roll_back("m")
        r.plane.rollouts.start("m")
        assert {(await sink.wait()).model_version for sink in sinks} == {1, 2}
        status = r.plane.rollouts.status("m")
        assert (status.state, status.old.ended, status.new.ended) == ("running", 0, 0)


async def test_a_name_of_two_namespaces_is_refused(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await begin(r)
        r.plane.rollouts.roll_back("m")
        for versions in ({1: 1}, {1: 1, 2: 2}):
            r.want(MODEL, versions, namespace="n")
            ready = 2 + len(versions)
            await r.store.wait_for(
                lambda seen, ready=ready: sum(each.state is ModelState.READY for each in seen.observed.values()) == ready
            )
        for action in (r.plane.rollouts.status, r.plane.rollouts.start, r.plane.rollouts.promote, r.plane.rollouts.roll_back):
            with pytest.raises(AmbiguousName, match="There are 2 identifiers of model 'm'"):
                action("m")
        assert [r.plane.rollouts.status("m", namespace).state for namespace in ("", "n")] == ["rolled back", "running"]
        shares = {sample.labels.get("namespace"): sample.value for sample in r.plane.rollouts.families()[0].samples}
        assert shares == {None: 0, "n": 50}


WITHOUT_PLAN = config(max_batch_size=4)
GIVEN = json.dumps({"steps": [{"percent": 25, "seconds": 3600}], "min_requests": 20})
"""The plan of a call: of four requests one goes to the new version."""

BY_GIVEN, BY_PARAMETER = [1, 1, 1, 2], [1, 2, 1, 2]


async def served(r: Rig, model: ModelConfig, generation: int, *versions: int) -> None:
    """Have these versions of the model, loaded anew with this configuration."""
    r.want(model, dict.fromkeys(versions, generation))
    for version in versions:
        await r.wait_state(version, generation, ModelState.READY)


async def test_a_call_gives_a_plan_to_a_model_without_one(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await served(r, WITHOUT_PLAN, 1, 1, 2)
        assert await versions_of(r, 2) == [2, 2]
        with pytest.raises(
            NotFound, match=r"no version of model 'm' is rolled out, and it has no parameter 'rollout': expected a plan"
        ):
            r.plane.rollouts.start("m")
        status = r.plane.rollouts.start("m", GIVEN)
        assert (status.state, status.percent, status.old.version, status.new.version) == ("running", 25, 1, 2)
        assert (status.plan_from, status.plan["min_requests"], status.plan["max_error_percent"]) == ("call", 20, 1)
        assert await versions_of(r, 4) == BY_GIVEN
        r.plane.rollouts.roll_back("m")
        assert await versions_of(r, 4) == [1] * 4
        assert r.plane.rollouts.start("m").percent == 25, "by the plan of the earlier call"
        r.plane.rollouts.promote("m")
        assert await versions_of(r, 2) == [2, 2]
        with pytest.raises(NotFound):
            r.plane.rollouts.status("m")
        with pytest.raises(NotFound, match="expected a plan"):
            r.plane.rollouts.start("m")


async def test_the_plan_of_a_call_goes_before_the_parameter_until_a_version_is_promoted(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await begin(r)
        assert r.plane.rollouts.status("m").plan_from == "parameter"
        for _ in range(2):
            r.plane.rollouts.start("m", GIVEN)
            assert await versions_of(r, 4) == BY_GIVEN
            status = r.plane.rollouts.start("m")
            assert (status.plan_from, status.steps) == ("parameter", 2), "a call without plan goes back to the parameter"
            assert await versions_of(r, 4) == BY_PARAMETER
        r.plane.rollouts.start("m", GIVEN)
        for generation, model in ((3, with_plan(MODEL, min_requests=30)), (4, WITHOUT_PLAN), (5, MODEL)):
            await served(r, model, generation, 1, 2)
            assert r.plane.rollouts.status("m").plan_from == "call", "whatever the parameter becomes"
            assert await versions_of(r, 4) == BY_GIVEN
        r.plane.rollouts.promote("m")
        await served(r, MODEL, 6, 1, 2, 3)
        status = r.plane.rollouts.status("m")
        assert (status.old.version, status.new.version, status.plan_from) == (2, 3, "parameter")


async def test_a_version_after_one_that_was_rolled_back_goes_by_the_plan_of_the_call(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await served(r, WITHOUT_PLAN, 1, 1, 2)
        r.plane.rollouts.start("m", GIVEN)
        r.plane.rollouts.roll_back("m")
        r.want(WITHOUT_PLAN, {1: 1, 3: 2})
        await r.wait_state(3, 2, ModelState.READY)
        assert r.plane.rollouts.status("m").new.version == 3
        assert await versions_of(r, 4) == [1, 1, 1, 3]
        r.want(WITHOUT_PLAN, {3: 2, 4: 3})
        await r.wait_state(4, 3, ModelState.READY)
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)
        assert await versions_of(r, 2) == [4, 4], "the old version was removed, and the plan with it"


@pytest.mark.parametrize("model", [MODEL, WITHOUT_PLAN])
async def test_a_call_rolls_out_what_answers_everything_already(autojump_clock: MockClock, model: ModelConfig) -> None:
    async with rig() as r:
        await served(r, model, 1, 1, 2, 3)
        assert await versions_of(r, 2) == [3, 3]
        status = r.plane.rollouts.start("m", "" if model is MODEL else GIVEN)
        assert (status.old.version, status.new.version) == (2, 3)
        assert await versions_of(r, 4) == ([2, 3, 2, 3] if model is MODEL else [2, 2, 2, 3])


@pytest.mark.parametrize("state", ["running", "rolled back"])
async def test_the_plan_of_a_call_outlives_a_restart(autojump_clock: MockClock, tmp_path: Path, state: str) -> None:
    file = tmp_path / "rollouts.json"
    async with rig(rollout_file=file) as r:
        await served(r, WITHOUT_PLAN, 1, 1, 2)
        r.plane.rollouts.start("m", GIVEN)
        if state == "rolled back":
            r.plane.rollouts.roll_back("m")
        while not file.exists() or json.loads(file.read_text())["m"]["state"] != state:
            await trio.lowlevel.checkpoint()  # a thread writes it
    line = json.loads(file.read_text())["m"]
    assert (line["format"], line["plan"]["steps"]) == (2, [{"percent": 25, "seconds": 3600}])
    async with rig(rollout_file=file) as r:
        await served(r, WITHOUT_PLAN, 1, 1, 2)
        status = r.plane.rollouts.status("m")
        assert (status.state, status.plan_from, status.steps) == (state, "call", 1)
        assert await versions_of(r, 4) == (BY_GIVEN if state == "running" else [1] * 4)
        assert r.plane.rollouts.start("m").percent == 25
        r.plane.rollouts.promote("m")
        while "m" in json.loads(file.read_text()):
            await trio.lowlevel.checkpoint()


async def test_a_plan_that_the_model_no_longer_fits_is_given_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(backend=Completing(lambda model: model)) as r:
        await begin(r)
        shadowed = json.dumps({"shadow": {}, "steps": STEPS})
        assert r.plane.rollouts.start("m", shadowed).percent == 0
        decoupled = changed(MODEL, model_transaction_policy=TransactionPolicy(decoupled=True))
        await served(r, decoupled, 3, 1, 2)
        with pytest.raises(InvalidArgument, match="this model is decoupled or has sequences"):
            r.plane.rollouts.start("m", shadowed)
        status = r.plane.rollouts.status("m")
        assert (status.plan_from, status.percent) == ("parameter", 50)
        assert "the plan that a call has given does not hold any more: shadow compares" in caplog.text


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"pace": 1}', "Object contains unknown field `pace`"),
        ('{"steps": [{"percent": 0}]}', "Expected `float` > 0.0 - at `$.steps[0].percent`"),
        ('{"steps": [{"percent": 9}, {"percent": 5}]}', "the percents of the steps are 9, 5, expected them to rise"),
        ('{"sticky": "user"}', "sticky is 'user', expected correlation_id, request_id or parameter:NAME"),
        ('{"sticky": "parameter:' + 9000 * "x" + '"}', "it has 9024 bytes, at most 8192 are allowed"),
        ('{"sticky": "parameter:' + 4085 * "é" + '"}', "it has 8194 bytes, at most 8192 are allowed"),
    ],
)
async def test_an_impossible_plan_of_a_call_changes_nothing(autojump_clock: MockClock, plan: str, reason: str) -> None:
    async with rig() as r:
        await begin(r)
        before = r.plane.rollouts.status("m")
        with pytest.raises(InvalidArgument) as refused:
            r.plane.rollouts.start("m", plan)
        example = '{"steps": [{"percent": 10, "seconds": 60}]}'
        text = f"the plan for m is not a valid rollout plan: {reason}, expected a JSON object like {example}"
        assert str(refused.value) == text
        assert r.plane.rollouts.status("m") == before


def running() -> int:
    """The number of tasks of this run that look after rollouts."""
    count, left = 0, [trio.lowlevel.current_root_task()]
    while left:
        if (task := left.pop()) is not None:
            count += task.name.endswith(".Rollouts.run")
            left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return count


async def test_a_call_that_is_refused_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await served(r, WITHOUT_PLAN, 1, 1, 2)
        for name, plan, error in (("n", GIVEN, NotFound), ("m", "", NotFound), ("m", "[]", InvalidArgument)):
            with pytest.raises(error):
                r.plane.rollouts.start(name, plan)
        assert running() == 0
        await served(r, MODEL, 2, 1)
        await wait_all_tasks_blocked()
        assert running() == 1, "the parameter still begins them"
        await served(r, MODEL, 3, 1, 2)
        assert r.plane.rollouts.start("m", GIVEN).plan_from == "call"
        assert running() == 1


async def test_versions_that_are_to_be_rolled_out_must_be_loaded(autojump_clock: MockClock) -> None:
    async def refused(r: Rig) -> str:
        with pytest.raises(TpyError) as error:
            r.plane.rollouts.start("m", GIVEN)
        assert isinstance(error.value, NotFound)
        return str(error.value)

    async with rig() as r:
        assert await refused(r) == "no version of model 'm' is loaded, expected an old and a new one to roll out"
        await served(r, WITHOUT_PLAN, 1, 2)
        only = "of model 'm' only version 2 is loaded, expected an old and a new version to roll out; "
        assert await refused(r) == f"{only}version_policy says which are loaded"
        r.want(WITHOUT_PLAN, {1: 2, 2: 1}, namespace="")
        await r.wait_state(1, 2, ModelState.READY)
        assert r.plane.rollouts.start("m", GIVEN).old.version == 1
