"""Tenants in the engine: rates and concurrency, the file that is read again, metrics."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.engine.ensembles import CHAIN, serve_all
from tests.engine.fakes import RecordingSink, config, request, rig
from tests.engine.test_model_calls import Sink as CallSink
from tests.engine.test_rollouts import begin
from tests.jumping import jump_until
from tests.submitting import submit_to
from tpy.backend import WaitingBatch
from tpy.config.model_config import DynamicBatching, InstanceGroup, RateLimiter, RateLimiterResource
from tpy.errors import InvalidArgument, TooManyRequests
from tpy.frontends.access.tenancy import check_tenants
from tpy.limits.tenants import TENANTS_FILE_LOOK_S
from tpy.messages import InferenceResponse
from tpy.reloading import reload
from tpy.telemetry.host import TENANT_FAMILIES
from tpy.tenants import OTHER, TenantRules
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.requests.responder import DISCARD
from tpy_data.engine.serving.tenant_copy import LimitedRequest
from tpy_data.engine.tenancy.metrics import tenant_families
from tpy_data.engine.tenancy.tenancy import Tenancy
from tpy_data.schedulers.core.rate_limiter import Supply
from tpy_data.schedulers.core.tenants import Limit, Tenant, tenants_of


def test_a_rate_says_when_to_come_back() -> None:
    tenant = Tenant(TenantRules(name="a", requests_per_s=0.5, burst=2))
    tenant.begin(0)
    tenant.begin(0)
    with pytest.raises(TooManyRequests, match=r"tenant 'a' has sent more than its 0.5 requests a second") as refusal:
        tenant.begin(NS_PER_S)
    assert refusal.value.wait_s == 1
    tenant.begin(2 * NS_PER_S)
    assert (tenant.requests, tenant.refused[Limit.RATE]) == (3, 1)


def test_concurrency_counts_until_the_last_response_or_the_cancellation() -> None:
    tenant = Tenant(TenantRules(name="a", concurrency=2))
    requests = []
    for _ in range(2):
        tenant.begin(0)
        requests.append(LimitedRequest(DISCARD, tenant))
    with pytest.raises(TooManyRequests, match="tenant 'a' has 2 requests in the server, its concurrency is 2"):
        tenant.begin(0)
    requests[0].deliver(InferenceResponse(model_name="m", model_version=1, final=False))
    assert tenant.running == 2
    requests[0].deliver(InferenceResponse(model_name="m", model_version=1))
    requests[1].cancel()
    requests[1].cancel()
    assert tenant.running == 0


def test_a_rate_that_is_read_again_goes_on_where_it_was() -> None:
    rules = TenantRules(name="a", requests_per_s=1, burst=1)
    tenant = Tenant(rules)
    tenant.begin(0)
    tenant.use(rules)
    with pytest.raises(TooManyRequests):
        tenant.begin(0)
    tenant.use(TenantRules(name="a", requests_per_s=2, burst=1))
    tenant.begin(0)


async def test_the_file_is_read_again_when_it_changes_and_with_all_others(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tenants.json"
    file.write_text('{"tenants": [{"name": "a"}, {"name": "b"}]}')
    tenancy = Tenancy(str(file))
    tenants = tenancy.tenants
    a = tenants.of("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tenancy.run)
        file.write_text('{"tenants": [{"name": "a", "weight": 5}]}')
        await jump_until(mock_clock, TENANTS_FILE_LOOK_S, lambda: a.weight == 5)
        assert (tenants.of("a"), tenants.of("b").name, tenants.weights) == (a, OTHER, 6)
        file.write_text("{")
        await jump_until(mock_clock, TENANTS_FILE_LOOK_S, lambda: "is neither TOML nor JSON" in caplog.text)
        file.write_text('{"tenants": [{"name": "a", "weight": 7}]}')
        reload("a test")
        assert a.weight == 7
        nursery.cancel_scope.cancel()
    with pytest.raises(InvalidArgument, match="--tenants-file: cannot read"):
        Tenancy(str(tmp_path / "none.json"))


async def test_a_file_that_the_ports_do_not_take_changes_nothing(tmp_path: Path) -> None:
    file, keys = tmp_path / "tenants.json", tmp_path / "auth.json"
    file.write_text('{"tenants": [{"name": "a", "keys": ["k"]}]}')
    keys.write_text(json.dumps({"keys": [{"name": "k", "sha256": "0" * 64, "roles": ["infer"]}]}))
    tenancy = Tenancy(str(file), partial(check_tenants, str(file), str(keys)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tenancy.run)
        await trio.testing.wait_all_tasks_blocked()
        for named, weight in ((["k", "none"], 1), (["k"], 5)):
            file.write_text(json.dumps({"tenants": [{"name": "a", "weight": 5, "keys": named}]}))
            reload("a test")
            assert tenancy.tenants.of("a").weight == weight
        nursery.cancel_scope.cancel()
    with pytest.raises(InvalidArgument, match="tenant 'a' has the key 'k': --auth-config has no keys"):
        Tenancy(str(file), partial(check_tenants, str(file), ""))


async def test_steps_of_an_ensemble_count_once_with_its_request(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    rules = {"name": "a", "concurrency": 1, "requests_per_s": 0.001, "burst": 2}
    (tmp_path / "tenants.json").write_text(json.dumps({"tenants": [rules]}))
    async with rig(tenants_file=str(tmp_path / "tenants.json")) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        for _ in range(2):
            assert (await r.submit(request(model="e", tenant="a")).wait()).error is None
        with pytest.raises(TooManyRequests, match=r"tenant 'a' has sent more than its 0.001 requests a second"):
            r.submit(request(model="e", tenant="a"))
        assert r.plane.tenancy is not None
        tenant = r.plane.tenancy.tenants.of("a")
        assert (tenant.requests, tenant.running) == (2, 0)


async def test_refusals_of_a_tenant_that_sends_too_many_do_not_count(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    tenants = tmp_path / "tenants.json"
    tenants.write_text('{"tenants": [{"name": "greedy", "requests_per_s": 0.001}, {"name": "polite"}]}')
    async with rig(tenants_file=str(tenants)) as r:
        await begin(r)
        assert (await r.submit(request(tenant="greedy")).wait()).error is None
        for _ in range(100):
            with pytest.raises(TooManyRequests):
                r.submit(request(tenant="greedy"))
        status = r.plane.rollouts.status("m")
        assert (status.state, status.old.ended, status.new.ended, status.new.failed) == ("running", 1, 0, 0)
        assert {(await r.submit(request(tenant="polite")).wait()).model_version for _ in range(4)} == {1, 2}


async def test_time_on_one_model_of_a_device_counts_on_the_other(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    (tmp_path / "tenants.json").write_text('{"tenants": [{"name": "both"}, {"name": "one"}]}')
    device = (InstanceGroup(rate_limiter=RateLimiter(resources=(RateLimiterResource(name="R", count=1),))),)
    async with rig(latency_ms=10, rate_limit=Supply(), tenants_file=str(tmp_path / "tenants.json")) as running:
        for name in ("m", "n"):
            await running.serve(config(name, max_batch_size=1, instance_group=device))
        for tenant, model in (("both", "m"), ("both", "n"), ("one", "n")):
            for _ in range(120):
                submit_to(running.plane.inference, request(model=model, tenant=tenant), RecordingSink())
        await trio.sleep(1.2)
        assert running.plane.tenancy is not None
        times_ns = {tenant.name: tenant.instance_ns for tenant in running.plane.tenancy.tenants}
    total_ns = times_ns["both"] + times_ns["one"]
    assert total_ns >= 1180 * NS_PER_MS
    assert 0.5 <= times_ns["both"] / total_ns <= 0.6  # were their models divided one by one, three quarters


GREEDY_AND_POLITE = '{"tenants": [{"name": "greedy"}, {"name": "polite"}, {"name": "one", "concurrency": 1}]}'


@pytest.mark.parametrize("supply", [None, Supply()], ids=["", "rate limiter"])
@pytest.mark.parametrize("batching", [None, DynamicBatching()], ids=["default", "dynamic"])
async def test_a_polite_tenant_waits_for_what_executes_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, batching: DynamicBatching | None, supply: Supply | None
) -> None:
    (tmp_path / "tenants.json").write_text(GREEDY_AND_POLITE)
    async with rig(latency_ms=10, rate_limit=supply, tenants_file=str(tmp_path / "tenants.json")) as running:
        await running.serve(config(max_batch_size=1, dynamic_batching=batching))
        greedy = [RecordingSink() for _ in range(100)]
        for sink in greedy:
            submit_to(running.plane.inference, request(tenant="greedy"), sink)
        polite = RecordingSink()
        begun_s = trio.current_time()
        submit_to(running.plane.inference, request(tenant="polite"), polite)
        await polite.wait()
        assert trio.current_time() - begun_s <= 0.06  # the batches that the instance had, and its own
        await greedy[-1].wait()
        assert trio.current_time() - begun_s >= 1.0


async def test_a_call_of_a_model_is_of_the_tenant_whose_request_it_serves(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "tenants.json").write_text(GREEDY_AND_POLITE)
    async with rig(latency_ms=10, tenants_file=str(tmp_path / "tenants.json")) as running:
        await running.serve(config())
        tenancy = running.plane.tenancy
        assert tenancy is not None
        sink = RecordingSink()
        submit_to(running.plane.inference, request(tenant="one"), sink)
        await sink.wait()
        (caller,) = [ticket for batch in running.backend.batches for ticket in batch.requests]
        called = CallSink()
        running.calls.infer(request(), called, streams=False, waiting=WaitingBatch([caller]))
        await called.ended.wait()
        one = tenancy.tenants.of("one")
        assert (one.requests, one.instance_ns) == (1, 20 * NS_PER_MS)  # both have cost it time, one was a request
        assert tenancy.tenant_of([caller, caller]) == "one"


def test_metrics_have_the_tenants_of_the_file_and_other() -> None:
    tenants = tenants_of([TenantRules(name="a", weight=3, concurrency=1)])
    a = tenants.of("a")
    a.begin(0)
    with pytest.raises(TooManyRequests):
        a.begin(0)
    tenants.of("from a client").begin(0)
    a.instance_ns = 1_500_000_000
    found = {family.name: family for family in tenant_families(tenants)}
    assert found.keys() == TENANT_FAMILIES.keys()
    values = {name: {tuple(each.labels.values()): each.value for each in family.samples} for name, family in found.items()}
    assert values["tpy_tenant_requests_total"] == {("a",): 1, (OTHER,): 1}
    assert values["tpy_tenant_refusals_total"]["a", "concurrency"] == 1
    assert len(values["tpy_tenant_refusals_total"]) == 2 * len(Limit)
    assert values["tpy_tenant_instance_seconds_total"]["a",] == 1.5
    assert values["tpy_tenant_weight"] == {("a",): 3, (OTHER,): 1}
