"""Placing: which instances a configuration wants, and where on this machine each of them goes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from tpy.backend import BackendCapabilities, HostPolicy, InstancePlacement
from tpy.backend.host_policy import ANYWHERE
from tpy.config import (
    COMPUTE_CAPABILITY_MIN,
    NO_SOURCE,
    ModelConfig,
    Problem,
    Severity,
    instance_names,
    normalise_instance_groups,
)
from tpy.config.model_config import InstanceGroup, InstanceKind, RateLimiter
from tpy_data.gpus import GpuInventory


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of this machine: its GPUs and the lowest compute capability that is used, the policies of
    --host-policy by name, and the shares (0 to 1) of --model-load-gpu-limit by device."""

    inventory: GpuInventory = GpuInventory()
    compute_capability_min: float = COMPUTE_CAPABILITY_MIN
    host_policies: Mapping[str, HostPolicy] = msgspec.field(default_factory=dict)
    gpu_limits: Mapping[int, float] = msgspec.field(default_factory=dict)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The ids of the GPUs that are used: the ones that are not too old, or whose age the driver does not tell."""
        return tuple(gpu.id for gpu in self.inventory.gpus if self._suffices(gpu.compute_capability))

    def _suffices(self, capability: tuple[int, int] | None) -> bool:
        if capability is None:
            return True
        major, minor = capability
        return major + minor / 10 >= self.compute_capability_min - 0.01  # Triton's tolerance, as 7.5 need not be exact


class PlacedInstance(NamedTuple):
    """One instance to make. Passive ones are made but get no requests. `limits`: what it needs to run. It is given up when its
    GPU is more than `gpu_share_max` full (0 to 1) once it is made."""

    placement: InstancePlacement
    passive: bool
    limits: RateLimiter | None = None
    gpu_share_max: float | None = None


class Placed(NamedTuple):
    """The configuration with nothing left open in its instance groups, the instances in its order, and warnings."""

    config: ModelConfig
    instances: tuple[PlacedInstance, ...]
    warnings: tuple[Problem, ...]


def place(config: ModelConfig, machine: Machine, capabilities: BackendCapabilities) -> Placed:
    """The instances of a configuration on this machine; on several GPUs each has those of its group. A host policy that is not
    there says nothing, as in Triton. Raises ConfigError with all problems when groups cannot be placed."""
    given = config
    config, warnings = normalise_instance_groups(
        given,
        gpus=machine.gpus,
        supported=capabilities.devices,
        default_kind=capabilities.default_kind,
        default_count=capabilities.default_count,
        compute_capability_min=machine.compute_capability_min,
        gpus_unusable=_unusable(machine, capabilities),
    )
    placed: list[PlacedInstance] = []
    for group, names in zip(config.instance_group, instance_names(config), strict=True):
        for device_id in group.gpus if group.kind is InstanceKind.KIND_GPU else (0,):
            placed.extend(_instance(group, name, device_id, machine) for name in names)
    return Placed(config, tuple(placed), (*warnings, *_not_on_gpus(given, config, machine, capabilities)))


def devices_of(placements: Iterable[InstancePlacement]) -> tuple[int, ...]:
    """The GPUs that these are on."""
    return tuple({placement.device_id: None for placement in placements if placement.kind is InstanceKind.KIND_GPU})


def _not_on_gpus(given: ModelConfig, config: ModelConfig, machine: Machine, capabilities: BackendCapabilities) -> list[Problem]:
    """A warning when instances that might be on a GPU are not, because the backend lacks something that can be installed."""
    if not (machine.gpus and capabilities.gpus_unusable and config.instance_group):
        return []
    if given.instance_group and all(group.kind is not InstanceKind.KIND_AUTO for group in given.instance_group):
        return []
    text = f"instances of model '{config.name}' are placed on the CPU, though there are GPUs: {capabilities.gpus_unusable}"
    return [NO_SOURCE.problem("instance_group", text, severity=Severity.WARNING)]


def _unusable(machine: Machine, capabilities: BackendCapabilities) -> str:
    """The reason why the GPUs of this machine cannot be used; "" if they can, or the machine has no GPUs."""
    if machine.inventory.trouble:
        return machine.inventory.trouble
    if not machine.inventory.gpus:
        return ""
    if not machine.gpus:
        found = ", ".join(_capability_text(gpu.id, gpu.compute_capability) for gpu in machine.inventory.gpus)
        return f"--min-supported-compute-capability is {machine.compute_capability_min:g}, and {found}"
    if InstanceKind.KIND_GPU not in capabilities.devices:
        return capabilities.gpus_unusable or f"backend '{capabilities.name}' does not run on GPUs"
    return ""


def _capability_text(device_id: int, capability: tuple[int, int] | None) -> str:
    major, minor = capability or (0, 0)
    return f"GPU {device_id} has {major}.{minor}"


def _instance(group: InstanceGroup, name: str, device_id: int, machine: Machine) -> PlacedInstance:
    policy = group.host_policy or _default_policy(group.kind, device_id)
    placement = InstancePlacement(
        name=name,
        kind=group.kind,
        device_id=device_id,
        host_policy=policy,
        group=group.name,
        host=machine.host_policies.get(policy, ANYWHERE),
        profiles=group.profile,
        secondary_devices=group.secondary_devices,
    )
    share_max = machine.gpu_limits.get(device_id) if group.kind is InstanceKind.KIND_GPU else None
    return PlacedInstance(placement, group.passive, group.rate_limiter, share_max)


def _default_policy(kind: InstanceKind, device_id: int) -> str:
    """The name of the policy of a group that names none."""
    if kind is InstanceKind.KIND_GPU:
        return f"gpu_{device_id}"
    return "model" if kind is InstanceKind.KIND_MODEL else "cpu"
