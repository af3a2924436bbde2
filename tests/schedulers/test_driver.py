"""The driver performs a core's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from trio.testing import MockClock

from tests.engine.fakes import RecordingSink, config, dynamic, request, rig
from tpy.config.model_config import ModelConfig
from tpy_data.schedulers.core import Ticket
from tpy_data.schedulers.driver import SchedulerDriver


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of performers, in order."""
    told: list[str] = []
    make = SchedulerDriver.__init__

    def spied(self: SchedulerDriver, core: Any, clock: Any, performer: Any) -> None:
        dispatch, respond = performer.dispatch, performer.respond

        def spy_dispatch(instance: int, batches: Sequence[Sequence[Ticket]], slots: Sequence[Ticket | None]) -> None:
            told.append(f"dispatch {sum(len(tickets) for tickets in batches)}")
            dispatch(instance, batches, slots)

        def spy_respond(tickets: Sequence[Ticket]) -> None:
            told.append(f"respond {len(tickets)}")
            respond(tickets)

        monkeypatch.setattr(performer, "dispatch", spy_dispatch)
        monkeypatch.setattr(performer, "respond", spy_respond)
        make(self, core, clock, performer)

    monkeypatch.setattr(SchedulerDriver, "__init__", spied)
    return told


@pytest.mark.parametrize(
    "model", [config(max_batch_size=1), config(max_batch_size=1, dynamic_batching=dynamic())], ids=["default", "dynamic"]
)
async def test_an_instance_has_its_next_batch_before_answers_are_given(
    autojump_clock: MockClock, performed: list[str], model: ModelConfig
) -> None:
    """Answers cost the loop time, which would be the instance's."""
    async with rig(latency_ms=10) as running:
        await running.serve(model)
        sinks: list[RecordingSink] = [running.submit(request(value=number)) for number in range(5)]
        for sink in sinks:
            await sink.wait()
    in_hand = answered = 0
    for told in performed:
        verb, count = told.split()
        if verb == "dispatch":
            in_hand += int(count)
        else:
            answered += int(count)
            assert in_hand > answered or answered == len(sinks), performed
    assert in_hand == answered == len(sinks)
