"""The core of ensembles: the fuzz target's histories as a Hypothesis test, and what a history seldom comes to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.chance import Chance
from fuzz.schedulers.ensemble_targets import run_history
from tpy.errors import Unavailable
from tpy.limits import ENSEMBLE_FRAMES_MAX, ENSEMBLE_PLANS_MAX, ENSEMBLE_STEP_WAIT_NS_MAX
from tpy_data.schedulers.core.contract import Phase
from tpy_data.schedulers.core.ensemble import Deliver, End, EnsembleCore, EnsembleRun, PauseStep, ResumeStep, StartStep, StepRun
from tpy_data.schedulers.core.ensemble_graph import EnsembleGraph, GraphStep

CHAIN = EnsembleGraph([GraphStep((0,), (1,)), GraphStep((1,), (2,))], inputs=[0], outputs=[2], tensor_count=3)
FLOW = EnsembleGraph([GraphStep((0,), (1,), decoupled=True), GraphStep((1,), (2,))], inputs=[0], outputs=[2], tensor_count=3)


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_histories(seed: int) -> None:
    run_history(Chance(seed))


def begun(core: EnsembleCore) -> list[StepRun]:
    return [action.step for action in core.take_actions() if isinstance(action, StartStep) and core.begin(action.step)]


def test_a_step_begins_beyond_its_bound_when_it_has_waited_long_enough() -> None:
    core = EnsembleCore(2, inflight_max=1)
    first, second = EnsembleRun(), EnsembleRun()
    core.submit(first, CHAIN.plan(), ["x"], 0)
    core.submit(second, CHAIN.plan(), ["y"], 5)
    assert first.phase is second.phase is Phase.EXECUTING
    assert len(begun(core)) == 1
    assert core.next_deadline_ns() == 5 + ENSEMBLE_STEP_WAIT_NS_MAX
    core.advance(4 + ENSEMBLE_STEP_WAIT_NS_MAX)
    assert not begun(core)
    core.advance(5 + ENSEMBLE_STEP_WAIT_NS_MAX)
    (step,) = begun(core)
    assert step.run is second
    assert core.overdue == 1
    assert core.next_deadline_ns() is None


def test_a_fast_producer_is_paused_while_much_of_it_is_under_way() -> None:
    core = EnsembleCore(2)
    core.submit(EnsembleRun(), FLOW.plan(), ["x"], 0)
    (producer,) = begun(core)
    steps: list[StepRun] = []
    for value in range(ENSEMBLE_FRAMES_MAX):
        core.responded(producer, [value], 0, final=False)
        actions = core.take_actions()
        steps += [action.step for action in actions if isinstance(action, StartStep) and core.begin(action.step)]
        assert [action for action in actions if isinstance(action, PauseStep)] == (
            [PauseStep(producer)] if value == ENSEMBLE_FRAMES_MAX - 1 else []
        )
    core.responded(steps[0], ["out"], 0, final=True)
    assert ResumeStep(producer) in core.take_actions()


def test_a_plan_knows_how_often_each_tensor_is_taken() -> None:
    """By each step that reads it, and by the answer: nothing is kept longer than that."""
    graph = EnsembleGraph([GraphStep((0,), (1,)), GraphStep((1,), (2,))], inputs=[0], outputs=[1, 2], tensor_count=3)
    assert graph.plan().uses == (1, 2, 1)
    assert graph.plan([1]).uses == (1, 1, 0)


def test_an_ensemble_that_can_go_no_further_fails() -> None:
    """Configurations that were checked cannot come to this; a member that changes its nature under an ensemble could."""
    graph = EnsembleGraph([GraphStep((0, 1), (2,))], inputs=[0], outputs=[2], tensor_count=3)
    core = EnsembleCore(1)
    run = EnsembleRun()
    core.submit(run, graph.plan(), ["x"], 0)
    assert core.take_actions() == [Deliver(run)]
    answer = core.take_answer(run)
    assert answer is not None
    assert (answer.final, answer.end) == (True, End.DEADLOCK)


def test_a_stream_that_made_a_part_of_its_outputs_does_not_end_in_silence() -> None:
    graph = EnsembleGraph(
        [GraphStep((0,), (1,), decoupled=True), GraphStep((1, 2), (3,))], inputs=[0], outputs=[1, 3], tensor_count=4
    )
    core = EnsembleCore(2)
    run = EnsembleRun()
    core.submit(run, graph.plan(), ["x"], 0)
    (step,) = begun(core)
    core.responded(step, ["y"], 0, final=True)
    answer = core.take_answer(run)
    assert answer is not None
    assert (answer.final, answer.end) == (True, End.DEADLOCK)


def test_a_passed_deadline_ends_it_before_it_begins() -> None:
    core = EnsembleCore(2)
    run = EnsembleRun(deadline_ns=3)
    core.submit(run, CHAIN.plan(), ["x"], 3)
    assert core.take_actions() == [Deliver(run)]
    answer = core.take_answer(run)
    assert answer is not None
    assert answer.end is End.TIMED_OUT


def test_nothing_is_accepted_after_the_end() -> None:
    core = EnsembleCore(2)
    core.stop()
    with pytest.raises(Unavailable, match="Server is stopping"):
        core.submit(EnsembleRun(), CHAIN.plan(), ["x"], 0)


def test_plans_are_remembered_up_to_a_bound() -> None:
    tensors = range(1, 12)
    graph = EnsembleGraph([GraphStep((0,), (tensor,)) for tensor in tensors], inputs=[0], outputs=tensors, tensor_count=12)
    subsets = [[tensor for tensor in tensors if number >> tensor & 1] for number in range(2, 2 * ENSEMBLE_PLANS_MAX + 4, 2)]
    for subset in subsets:
        plan = graph.plan(subset)
        assert list(plan.outputs) == subset
        assert [number + 1 for number in plan.readers[0]] == subset
    remembered = sum(graph.plan(subset) is graph.plan(subset) for subset in subsets)
    assert remembered == ENSEMBLE_PLANS_MAX
