"""Calls between models that can never end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpy_data.engine.calls.core import CallingBatch, find_circle
from tpy_data.engine.requests.handle import WaitingRequest


def batch(model: str, request: int, *calls: WaitingRequest, instances: int = 1, instance: int | None = None) -> CallingBatch:
    return CallingBatch(model, model, instances, frozenset({request}), calls, instance)


def queued(model: str, request: int = 99, instance: int | None = None) -> WaitingRequest:
    return WaitingRequest(request, model, True, instance)


def executing(model: str, request: int) -> WaitingRequest:
    return WaitingRequest(request, model, False)


def test_a_model_that_waits_for_itself() -> None:
    first = batch("a", 1, queued("a"))
    assert find_circle(first, [first]) == ["a", "a"]


def test_another_instance_is_free() -> None:
    first = batch("a", 1, queued("a"), instances=2)
    assert find_circle(first, [first]) == []


def test_both_instances_wait() -> None:
    first = batch("a", 1, queued("a"), instances=2)
    assert find_circle(first, [first, batch("a", 2, queued("a"), instances=2)]) == ["a", "a"]


def test_a_circle_of_three() -> None:
    first = batch("a", 1, executing("b", 2))
    others = [batch("b", 2, executing("c", 3)), batch("c", 3, queued("a"))]
    assert find_circle(first, [first, *others]) == ["a", "b", "c", "a"]
    assert find_circle(others[1], [first, *others]) == ["c", "a", "b", "c"]


def test_who_waits_for_a_circle_is_stuck_too() -> None:
    outside = batch("x", 7, executing("a", 1))
    inside = batch("a", 1, queued("a"))
    assert find_circle(outside, [outside, inside]) == ["a", "a"]


def test_a_callee_that_works_ends_it() -> None:
    first = batch("a", 1, executing("b", 2))
    assert find_circle(first, [first]) == []
    waiting = batch("a", 1, queued("b"))
    assert find_circle(waiting, [waiting]) == []


def test_one_stuck_call_of_several_is_enough() -> None:
    first = batch("a", 1, executing("b", 2), queued("a"))
    assert find_circle(first, [first]) == ["a", "a"]


def test_a_sequence_waits_for_its_own_instance() -> None:
    first = batch("a", 1, queued("a", instance=3), instances=2, instance=3)
    assert find_circle(first, [first]) == ["a", "a"]
    other = batch("a", 1, queued("a", instance=4), instances=2, instance=3)
    assert find_circle(other, [other, batch("a", 2, instances=2)]) == []


R = ("R", None)


def test_a_callee_needs_what_its_caller_holds() -> None:
    """An instance of b is free, but may not run while a runs, and a waits for it."""
    call = WaitingRequest(2, "b", True, needs={R: 3}, name="b")
    first = CallingBatch("a", "a", 1, frozenset({1}), [call], holds={R: 2})
    assert find_circle(first, [first], {R: 4}) == ["a", "b", "a"]
    assert find_circle(first, [first], {R: 5}) == []


def test_two_callers_hold_it_together() -> None:
    """Either would do with what the other leaves; of the two, neither ends."""
    calls = [WaitingRequest(number, "b", True, needs={R: 2}, name="b") for number in (3, 4)]
    batches = [
        CallingBatch(name, name, 1, frozenset({number}), [call], holds={R: 1})
        for number, (name, call) in enumerate(zip("ac", calls, strict=True))
    ]
    assert find_circle(batches[0], batches[:1], {R: 3}) == []
    assert find_circle(batches[0], batches, {R: 3}) == ["a", "b", "a"]
    ends = CallingBatch("c", "c", 1, frozenset({9}), [], holds={R: 1})
    assert find_circle(batches[0], [batches[0], ends], {R: 3}) == []


_MODELS = "abc"


@given(
    instances=st.fixed_dictionaries({model: st.integers(1, 2) for model in _MODELS}),
    calls=st.lists(st.tuples(st.sampled_from(_MODELS), st.sampled_from(_MODELS), st.booleans()), max_size=6),
)
def test_the_same_as_running_it(instances: dict[str, int], calls: list[tuple[str, str, bool]]) -> None:
    """Against a naive model that lets every batch end that can, one after the other, until none can."""
    batches: list[CallingBatch] = []
    for number, (model, target, free) in enumerate(calls):
        if sum(each.model == model for each in batches) == instances[model]:
            continue
        running = next((min(each.requests) for each in batches if each.model == target), None)
        call = queued(target, 100 + number) if free or running is None else executing(target, running)
        batches.append(batch(model, number, call, instances=instances[model]))
    left = list(batches)

    def can_end(each: CallingBatch) -> bool:
        (call,) = each.calls
        if call.queued:
            return sum(other.model == call.model for other in left) < instances[str(call.model)]
        return all(call.request not in other.requests for other in left)

    while ended := [each for each in left if can_end(each)]:
        left = [each for each in left if each not in ended]
    for each in batches:
        circle = find_circle(each, batches)
        assert bool(circle) is (each in left)
        if circle:
            assert circle[0] == circle[-1]
