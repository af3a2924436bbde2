"""Rollouts of a data plane: which version answers while versions come and go, and what is counted. All in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from tpy.backend import BackendCapabilities, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter, TransactionPolicy
from tpy.messages import ModelState

from .fakes import Rig, ScriptedBackend, config, rig

STEPS = [{"percent": 50, "seconds": 3600}, {"percent": 60, "seconds": 3600}]


def with_plan(model: ModelConfig, **plan: Any) -> ModelConfig:
    text = json.dumps({"steps": STEPS, "min_requests": 20} | plan)
    return msgspec.structs.replace(model, parameters={"rollout": ModelParameter(string_value=text)})


MODEL = with_plan(config(max_batch_size=4))


async def versions_of(r: Rig, count: int) -> list[int]:
    """The versions that answered."""
    return [(await r.submit().wait()).model_version for _ in range(count)]


class Completing(ScriptedBackend):
    """Fills in what the files of version 2 say."""

    capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake", decoupled=True, ragged=True)

    def __init__(self, complete: Callable[[ModelConfig], ModelConfig]) -> None:
        super().__init__()
        self._complete = complete

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return self._complete(context.config) if context.version == 2 else context.config


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
