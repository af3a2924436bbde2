"""The requests of all models that wait for a load, and the shares of tenants in their number and bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.engine.fakes import request, values
from tests.engine.test_on_demand import budget_of, model
from tpy.errors import QueueFull, TooManyRequests
from tpy.limits import ON_DEMAND_WAITING_MAX
from tpy.tenants import TenantRules
from tpy_data.engine.budget.waiting_room import WaitingRoom
from tpy_data.schedulers.core.tenants import Limit, tenants_of


def test_few_wait_and_with_few_bytes() -> None:
    room = WaitingRoom(requests_max=2, bytes_max=100)
    large = room.enter(500, "")  # alone, as large as it likes
    with pytest.raises(QueueFull, match="requests with 500 bytes wait for models that are being loaded, and this one has 1"):
        room.enter(1, "")
    room.leave(large)
    first = room.enter(60, "")
    room.enter(40, "")
    with pytest.raises(QueueFull, match="2 requests wait for models that are being loaded, which is the maximum"):
        room.enter(0, "")
    room.leave(first)
    room.enter(60, "")


def test_a_tenant_that_fills_the_room_leaves_others_their_share() -> None:
    tenants = tenants_of([TenantRules(name="greedy", weight=2), TenantRules(name="polite")])
    greedy, polite = tenants.of("greedy"), tenants.of("polite")
    room = WaitingRoom(requests_max=8, bytes_max=800, tenants=tenants)
    places = [room.enter(1, "greedy") for _ in range(8)]
    with pytest.raises(TooManyRequests, match=r"tenant 'greedy' has 8 requests that wait for models .* its share of 8 is 4"):
        room.enter(1, "greedy")
    for _ in range(2):
        places.append(room.enter(1, "polite"))
    with pytest.raises(TooManyRequests, match=r"tenant 'polite' has 2 requests that wait .* 10 in all: its share of 8 is 2"):
        room.enter(1, "polite")
    assert (greedy.waiting, polite.waiting) == (8, 2)
    assert polite.refused[Limit.QUEUE_SHARE] == 1
    for place in places:
        room.leave(place)
    assert (greedy.waiting, polite.waiting, room.requests, room.bytes) == (0, 0, 0, 0)


def test_a_tenant_with_large_inputs_leaves_others_their_share() -> None:
    tenants = tenants_of([TenantRules(name="greedy"), TenantRules(name="polite")])
    room = WaitingRoom(bytes_max=300, tenants=tenants)
    room.enter(290, "greedy")
    with pytest.raises(
        TooManyRequests, match=r"'greedy' has requests with 290 bytes .* and this one has 20: its share of 300 is 100"
    ):
        room.enter(20, "greedy")
    room.enter(60, "polite")
    with pytest.raises(
        TooManyRequests, match=r"'polite' has requests with 60 bytes .* and this one has 50: its share of 300 is 100"
    ):
        room.enter(50, "polite")
    room.enter(500, "nobody")  # a single one of a tenant may have any size, or it could never be served


async def test_a_tenant_cannot_keep_others_from_a_model_that_is_loaded(autojump_clock: MockClock, tmp_path: Path) -> None:
    file = tmp_path / "tenants.json"
    file.write_text(json.dumps({"tenants": [{"name": "greedy"}, {"name": "polite"}]}))
    async with budget_of(tmp_path, {"a": model("a")}, units=5, tenants_file=str(file)) as r:
        for _ in range(ON_DEMAND_WAITING_MAX):
            r.submit(request(model="a", tenant="greedy"))
        with pytest.raises(TooManyRequests, match=r"tenant 'greedy' has 4096 requests that wait for models") as refusal:
            r.submit(request(model="a", tenant="greedy"))
        assert refusal.value.wait_s
        polite = r.submit(request(model="a", tenant="polite"))
        assert values(await polite.wait()) == [1, 1]
        await trio.testing.wait_all_tasks_blocked()
        samples = {each.name: each.samples for each in r.plane.tenant_families()}
        assert [each.value for each in samples["tpy_tenant_waiting_requests"]] == [0, 0, 0]
