"""The plan of a replay, run in virtual time against servers that take as long as it says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import pytest

from tpy.recording.core.entries import RecordedRequest, RecordedSequence
from tpy_tools.replay.core.plan import ReplaySchedule


def request(arrived_ns: int, *, sequence: int | None = None, stream: str = "", latency_ns: int = 10) -> RecordedRequest:
    return RecordedRequest(
        arrived_ns=1000 + arrived_ns,
        latency_ns=latency_ns,
        protocol="http",
        model="m",
        stream=stream,
        sequence=None if sequence is None else RecordedSequence(id=sequence),
    )


def planned(requests: Sequence[RecordedRequest], speed: float) -> ReplaySchedule:
    schedule = ReplaySchedule(speed)
    for index, each in enumerate(requests):
        schedule.add(index, each)
    schedule.end()
    return schedule


def run(
    requests: Sequence[RecordedRequest],
    *,
    speed: float = 1,
    slots: int = 100,
    takes_ns: Callable[[int], int] = lambda index: 10,
    begin_ns: int = 50_000,
) -> list[tuple[int, int, int]]:
    """Returns when each request was sent and answered, and the time that its latency counts from, all from the begin on."""
    schedule = planned(requests, speed)
    now_ns, in_flight, found = begin_ns, [], {}
    while not schedule.done:
        while len(in_flight) < slots and (due_ns := schedule.take(now_ns)) is not None:
            index = schedule.taken
            assert due_ns <= now_ns
            heappush(in_flight, (now_ns + takes_ns(index), index))
            found[index] = now_ns - begin_ns, now_ns + takes_ns(index) - begin_ns, due_ns - begin_ns
        next_ns = schedule.next_ns() if len(in_flight) < slots else None
        if in_flight and (next_ns is None or in_flight[0][0] <= next_ns):
            now_ns, index = heappop(in_flight)
            schedule.finished(index, now_ns)
            schedule.answered()
        else:
            assert next_ns is not None
            now_ns = max(now_ns, next_ns)
    return [found[index] for index in range(len(requests))]


def test_the_pace_is_that_of_the_recording_or_n_times_as_fast() -> None:
    requests = [request(0), request(100), request(104)]
    assert [sent for sent, _, _ in run(requests)] == [0, 100, 104]
    assert [sent for sent, _, _ in run(requests, speed=2)] == [0, 50, 52]
    assert [sent for sent, _, _ in run(requests, speed=0)] == [0, 0, 0]
    assert run([]) == []


def test_without_a_slot_a_request_waits_and_its_latency_counts_from_when_it_was_due() -> None:
    assert run([request(0), request(1), request(2)], slots=1) == [(0, 10, 0), (10, 20, 1), (20, 30, 2)]


def test_steps_of_a_sequence_wait_for_each_other() -> None:
    requests = [request(0, sequence=1), request(5, sequence=2), request(20, sequence=1), request(21)]
    slow = run(requests, takes_ns=lambda index: 50)
    assert slow == [(0, 50, 0), (5, 55, 5), (50, 100, 50), (21, 71, 21)]


def test_a_stream_keeps_its_order_and_waits_for_what_was_waited_for() -> None:
    requests = [
        request(0, stream="a", latency_ns=100),
        request(10, stream="a", latency_ns=5),  # before the first one was answered
        request(20, stream="a"),  # after the second one was
        request(20, stream="b"),
    ]
    assert [sent for sent, _, _ in run(requests, takes_ns=lambda index: 40)] == [0, 10, 50, 20]
    assert [sent for sent, _, _ in run(requests, speed=0, takes_ns=lambda index: 40)] == [0, 0, 40, 0]


def test_a_stopped_schedule_waits_for_what_is_in_flight() -> None:
    schedule = planned([request(0, sequence=1), request(1, sequence=1)], 1)
    assert schedule.take(7) == 7
    assert schedule.next_ns() is None
    schedule.stop()
    assert not schedule.done
    schedule.finished(0, 9)
    schedule.answered()
    assert schedule.done
    assert schedule.take(100) is None


def test_as_fast_as_it_goes_a_latency_counts_from_the_sending() -> None:
    assert run([request(0), request(1)], speed=0, slots=1) == [(0, 10, 0), (10, 20, 10)]


@pytest.mark.parametrize("speed", [0, 1, 1000])
def test_requests_are_added_while_others_are_sent_and_what_is_over_is_forgotten(speed: float) -> None:
    schedule, now_ns, order = ReplaySchedule(speed), 0, []
    for index in range(60_000):
        schedule.add(index, request(10 * index, sequence=index // 2, stream=f"connection {index // 3}"))
        if index % 8 == 7:
            now_ns += 80
            while schedule.take(now_ns) is not None:
                order.append(schedule.taken)
                schedule.finished(schedule.taken, now_ns)
                schedule.answered()
        assert schedule.kept <= 40_010
    place = {index: at for at, index in enumerate(order)}
    assert len(place) == len(order) >= 59_980
    assert all(place[index] > place[index - 1] for index in range(1, 59_000, 2)), "of one sequence"
    assert not schedule.done


def test_an_answer_that_came_before_its_successor_was_read_counts() -> None:
    schedule = ReplaySchedule(1)
    schedule.add(0, request(0, sequence=1))
    assert schedule.take(100) == 100
    schedule.finished(0, 180)
    schedule.answered()
    assert not schedule.done
    schedule.add(1, request(20, sequence=1))
    schedule.end()
    assert schedule.take(200) == 180, "when the answer came, and not at 120, when the recording had it"


@pytest.mark.parametrize("seed", range(60))
def test_orders_hold_whatever_servers_do(seed: int) -> None:
    chance = random.Random(seed)
    arrivals = sorted(chance.randrange(200) for _ in range(chance.randrange(1, 30)))
    requests = [
        request(
            arrival,
            sequence=chance.choice((None, 1, 2)),
            stream=chance.choice(("", "a", "b")),
            latency_ns=chance.choice((1, 30, 300)),
        )
        for arrival in arrivals
    ]
    speed, slots, takes = chance.choice((0.0, 0.5, 1.0, 7.0)), chance.choice((1, 2, 100)), chance.choices((1, 20, 200), k=30)
    found = run(requests, speed=speed, slots=slots, takes_ns=lambda index: takes[index])
    last_step: dict[int | str, int] = {}
    last_of_stream: dict[str, int] = {}
    for index, each in enumerate(requests):
        sent, _, due = found[index]
        assert due <= sent
        assert sent >= ((arrivals[index] - arrivals[0]) / speed - 1 if speed else 0)
        if each.sequence is not None:
            if each.sequence.id in last_step:
                assert sent >= found[last_step[each.sequence.id]][1]
            last_step[each.sequence.id] = index
        if each.stream:
            if each.stream in last_of_stream:
                before = last_of_stream[each.stream]
                assert sent >= found[before][0]
                if requests[before].arrived_ns + requests[before].latency_ns <= each.arrived_ns:
                    assert sent >= found[before][1]
            last_of_stream[each.stream] = index
