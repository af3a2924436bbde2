"""Rollouts of new versions over gRPC: a service of tpy, with what HTTP has at /v2/repository/models/<model>/rollout."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from google.protobuf.message import Message

from tpy._proto import messages
from tpy.services import Services

pb = messages("rollout.proto")

_SERVICE = "/tpy.rollout.v1.RolloutService/"

CHANGING: Final = frozenset(f"{_SERVICE}{method}" for method in ("Start", "Promote", "RollBack"))
"""The methods that change something."""

APIS: Final = dict.fromkeys((f"{_SERVICE}Status", *CHANGING), "model-repository")
"""The restricted protocol of each method."""


class RolloutService:
    """See proto/rollout.proto."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def status(self, message: Any) -> Message:
        return await self._rollout(message, "")

    async def start(self, message: Any) -> Message:
        return await self._rollout(message, "start")

    async def promote(self, message: Any) -> Message:
        return await self._rollout(message, "promote")

    async def roll_back(self, message: Any) -> Message:
        return await self._rollout(message, "roll_back")

    async def _rollout(self, message: Any, action: str) -> Message:
        status = await self._services.diagnostics.rollout(message.model_name, action, message.plan)
        plan = msgspec.json.encode(status.plan).decode() if status.plan else ""
        response: Message = pb.RolloutStatus(**{**msgspec.to_builtins(status), "plan": plan})
        return response
