"""Placing: which instances a configuration wants, and where on this machine each of them goes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tpy.backend import HostPolicy, InstancePlacement
from tpy.backend.host_policy import ANYWHERE
from tpy.config import ModelConfig, instance_names
from tpy.config.model_config import InstanceKind, RateLimiter


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of this machine: the ids of GPUs, the policies of --host-policy by name, and the shares (0 to 1) of
    --model-load-gpu-limit by device."""

    gpus: tuple[int, ...] = ()
    host_policies: Mapping[str, HostPolicy] = msgspec.field(default_factory=dict)
    gpu_limits: Mapping[int, float] = msgspec.field(default_factory=dict)


class PlacedInstance(NamedTuple):
    """One instance to make. Passive ones are made but get no requests. `limits`: what it needs to run. It is given up when its
    GPU is more than `gpu_share_max` full (0 to 1) once it is made."""

    placement: InstancePlacement
    passive: bool
    limits: RateLimiter | None = None
    gpu_share_max: float | None = None


def place(config: ModelConfig, machine: Machine) -> tuple[PlacedInstance, ...]:
    """The instances of a normalised configuration, in its order; on several GPUs each has those of its group. A policy that
    is not there says nothing, as in Triton."""
    placed = []
    for group, names in zip(config.instance_group, instance_names(config), strict=True):
        on_gpu = group.kind is InstanceKind.KIND_GPU
        for device_id in group.gpus if on_gpu else (0,):
            policy = group.host_policy or _default_policy(group.kind, device_id)
            host = machine.host_policies.get(policy, ANYWHERE)
            share_max = machine.gpu_limits.get(device_id) if on_gpu else None
            for name in names:
                placement = InstancePlacement(
                    name=name, kind=group.kind, device_id=device_id, host_policy=policy, group=group.name, host=host
                )
                placed.append(PlacedInstance(placement, group.passive, group.rate_limiter, share_max))
    return tuple(placed)


def _default_policy(kind: InstanceKind, device_id: int) -> str:
    """The name of the policy of a group that names none."""
    if kind is InstanceKind.KIND_GPU:
        return f"gpu_{device_id}"
    return "model" if kind is InstanceKind.KIND_MODEL else "cpu"
