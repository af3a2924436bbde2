"""The service of rollouts: the same values as over HTTP, for those who may manage models."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpclib.const import Status

from tpy._proto import message_class
from tpy.frontends.access import AuthOptions
from tpy.frontends.access.config import digest, key_entry
from tpy.frontends.grpc import GrpcServiceOptions

from .fakes import port

SERVICE = "/tpy.rollout.v1.RolloutService/"
RolloutRequest, RolloutStatus = (message_class(f"tpy.rollout.v1.{name}") for name in ("RolloutRequest", "RolloutStatus"))


def request(name: str, plan: str = "") -> bytes:
    return RolloutRequest(model_name=name, plan=plan).SerializeToString()


@pytest.mark.parametrize(
    ("method", "state", "reason", "plan"),
    [
        ("Status", "running", "", ""),
        ("Start", "running", "start", ""),
        ("Start", "running", "start", '{"min_requests":5}'),
        ("Promote", "running", "promote", ""),
        ("RollBack", "rolled back", "roll_back", ""),
    ],
)
async def test_a_rollout_is_told_and_changed(method: str, state: str, reason: str, plan: str) -> None:
    async with port() as server:
        call = await server.call(SERVICE + method, request("m", plan))
        assert call.status is Status.OK
        arms = {
            name: {"version": version, "ended": 9, "failed": version - 1, "p99_ns": 7}
            for version, name in enumerate(("old", "new"), 1)
        }
        percent = 0.0 if method == "RollBack" else 12.5
        shown = {"plan": plan, "plan_from": "call" if plan else "parameter"}
        expected = RolloutStatus(
            model="m", state=state, percent=percent, step=1, steps=3, reason=reason, compared=5, differed=0, **shown, **arms
        )
        assert RolloutStatus.FromString(call.reply_bytes) == expected


async def test_a_model_without_rollout_is_not_found() -> None:
    async with port() as server:
        call = await server.call(f"{SERVICE}Status", request("n"))
        assert (call.status, call.message) == (Status.NOT_FOUND, "no version of model 'n' is rolled out")


async def test_to_look_and_to_change_need_roles(tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    entries = [
        key_entry(name, digest(name), [role], models=["m"]) for name, role in (("looks", "observe"), ("changes", "manage"))
    ]
    file.write_text("\n".join(entries))
    options = GrpcServiceOptions(auth=AuthOptions(file=str(file), required=True))
    async with port(options) as server:
        for method in ("Status", "Start", "Promote", "RollBack"):
            statuses = [
                (await server.call(SERVICE + method, request(model), (("x-api-key", key),))).status
                for key, model in (("changes", "m"), ("looks", "m"), ("changes", "n"))
            ]
            looks = Status.OK if method == "Status" else Status.PERMISSION_DENIED
            assert statuses == [Status.OK, looks, Status.PERMISSION_DENIED], method
