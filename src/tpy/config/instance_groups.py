"""Instance groups: their defaults, where they go on this machine, and the names of their instances."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from tpy import limits
from tpy.config.known_backends import TENSORRT_PLAN
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelConfig
from tpy.config.problem import NO_SOURCE, ConfigError, Problem, Severity, Source
from tpy.config.resolve import ENSEMBLE_PLATFORM

COMPUTE_CAPABILITY_MIN: Final = 6.0
"""Triton's default of --min-supported-compute-capability; its texts name it."""


def normalise_instance_groups(
    config: ModelConfig,
    *,
    gpus: Sequence[int],
    supported: Collection[InstanceKind],
    default_kind: InstanceKind = InstanceKind.KIND_CPU,
    default_count: int = 1,
    compute_capability_min: float = COMPUTE_CAPABILITY_MIN,
    gpus_unusable: str = "",
    source: Source = NO_SOURCE,
) -> tuple[ModelConfig, tuple[Problem, ...]]:
    """The configuration with every group's name, kind, count and GPUs filled in, and warnings.

    `gpus` are the device ids of this machine, none of them older than `compute_capability_min`; `gpus_unusable` is the reason why
    there are GPUs and they cannot be used. `supported` are the kinds that the backend can run. A missing instance_group is one
    group on the GPUs where the backend can use them, else of `default_kind`; `default_count` is the count of a CPU group that
    gives none. Ensembles have no groups.

    KIND_GPU on a machine without GPUs goes to the CPU, with a warning. Raises ConfigError with all problems: GPUs that are not
    there or cannot be used, GPUs for a kind without GPUs, a kind that the backend cannot run.
    """
    if config.ensemble_scheduling is not None or config.platform == ENSEMBLE_PLATFORM:
        return config, ()
    usable = tuple(gpus) if InstanceKind.KIND_GPU in supported else ()
    missing = InstanceGroup(name=config.name, kind=InstanceKind.KIND_GPU if usable else default_kind)
    given = config.instance_group or (missing,)
    problems = check_instance_groups(config, source)
    groups = []
    for index, group in enumerate(given):
        placement = _Placement(config, group, index, _Gpus(usable, compute_capability_min, gpus_unusable), source=source)
        groups.append(placement.resolve(supported, default_count))
        problems.extend(placement.problems)
    if any(problem.is_error for problem in problems):
        raise ConfigError(problems)
    return msgspec.structs.replace(config, instance_group=tuple(groups)), tuple(problems)


def instance_names(config: ModelConfig) -> tuple[tuple[str, ...], ...]:
    """The names of the instances of each group of a normalised configuration: `<group>_<i>` for i below its count.

    On several GPUs each of them has instances of these same names, as with Triton.
    """
    return tuple(tuple(f"{group.name}_{index}" for index in range(group.count)) for group in config.instance_group)


def check_instance_groups(config: ModelConfig, source: Source = NO_SOURCE) -> list[Problem]:
    """Check the groups for errors that do not depend on the machine."""
    problems: list[Problem] = []
    for index, group in enumerate(config.instance_group):
        name = group.name or f"{config.name}_{index}"
        path = f"instance_group[{index}]"
        if group.gpus and group.kind in (InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL):
            message = f"instance group {name} of model {config.name} has kind {group.kind.name} but specifies one or more GPUs"
            problems.append(source.problem(f"{path}.gpus", message))
        if group.count > limits.INSTANCES_OF_GROUP_MAX:
            message = f"instance group {name} of model {config.name} has count {group.count}"
            problems.append(source.problem(f"{path}.count", message, expected=f"at most {limits.INSTANCES_OF_GROUP_MAX}"))
        problems.extend(_check_profiles(config, group, name, path, source))
    count = sum(max(1, group.count) for group in config.instance_group)
    if count > limits.INSTANCES_OF_MODEL_MAX and not problems:
        message = f"the instance groups of model {config.name} have {count} instances"
        problems.append(source.problem("instance_group", message, expected=f"at most {limits.INSTANCES_OF_MODEL_MAX}"))
    return problems


def _check_profiles(config: ModelConfig, group: InstanceGroup, name: str, path: str, source: Source) -> list[Problem]:
    if group.profile and config.platform != TENSORRT_PLAN:
        message = (
            f"instance group {name} of model {config.name} and platform {config.platform}"  # no space: Triton's text
            "specifies profile field which is only supported for TensorRT models"
        )
        return [source.problem(f"{path}.profile", message)]
    return [
        source.problem(
            f"{path}.profile[{index}]",
            f"instance group {name} of model {config.name} and platform {config.platform} specifies invalid profile {profile}. "
            "The field should contain the string representation of a non-negative integer.",
        )
        for index, profile in enumerate(group.profile)
        if not (profile.isascii() and profile.isdigit())
    ]


class _Gpus(NamedTuple):
    """The GPUs that the backend can use, and why it cannot use the ones that this machine has."""

    ids: tuple[int, ...]
    compute_capability_min: float
    unusable: str


class _Placement:
    """One group on its way to a device. `problems` collects what was found."""

    def __init__(self, config: ModelConfig, group: InstanceGroup, index: int, gpus: _Gpus, *, source: Source) -> None:
        self.problems: list[Problem] = []
        self._gpus = gpus
        self._group = msgspec.structs.replace(group, name=group.name or f"{config.name}_{index}")
        self._title = f"instance group {self._group.name} of model {config.name}"
        self._path = f"instance_group[{index}]"
        self._source = source

    def resolve(self, supported: Collection[InstanceKind], default_count: int) -> InstanceGroup:
        """The group with nothing left open."""
        kind = self._group.kind
        gpus = self._gpus.ids
        if kind is InstanceKind.KIND_AUTO:
            # As model_config.proto has it: a listed GPU that is not there sends an AUTO group to the CPU. (Triton then refuses
            # the group, because it has GPUs and is on the CPU.)
            kind = InstanceKind.KIND_GPU if gpus and set(self._group.gpus) <= set(gpus) else InstanceKind.KIND_CPU
            if kind not in supported and InstanceKind.KIND_MODEL in supported:
                kind = InstanceKind.KIND_MODEL
            if kind is not InstanceKind.KIND_GPU:
                self._group = msgspec.structs.replace(self._group, gpus=())
        elif kind is InstanceKind.KIND_GPU:
            kind = self._gpu_or_cpu(supported)
        if kind not in supported and not (kind is InstanceKind.KIND_GPU and self.problems):
            names = ", ".join(sorted(each.name for each in supported))
            self._error(
                "kind", f"{self._title} has kind {kind.name}, which its backend does not support", expected=f"one of {names}"
            )
        return msgspec.structs.replace(
            self._group,
            kind=kind,
            count=self._count(kind, default_count),
            gpus=(self._group.gpus or gpus) if kind is InstanceKind.KIND_GPU else (),
        )

    def _gpu_or_cpu(self, supported: Collection[InstanceKind]) -> InstanceKind:
        """KIND_GPU if the machine has a GPU; otherwise the CPU, with a warning, if the backend runs there."""
        gpus, unusable = self._gpus.ids, self._gpus.unusable
        if not gpus and InstanceKind.KIND_CPU in supported and not unusable:
            self.problems.append(
                self._source.problem(
                    f"{self._path}.kind",
                    f"{self._title} has kind KIND_GPU but no GPUs are available; its instances are placed on the CPU",
                    severity=Severity.WARNING,
                )
            )
            return InstanceKind.KIND_CPU
        if not gpus:
            reason = f": {unusable}" if unusable else ""
            self._error("kind", f"{self._title} has kind KIND_GPU but no GPUs are available{reason}")
        for index, gpu in enumerate(self._group.gpus):
            if gpus and gpu not in gpus:
                self._error(
                    f"gpus[{index}]",
                    f"{self._title} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                    f"compute compatibility of {self._gpus.compute_capability_min:f} are: {', '.join(map(str, gpus))}",
                )
        return InstanceKind.KIND_GPU

    def _count(self, kind: InstanceKind, default_count: int) -> int:
        if self._group.count >= 1:
            return self._group.count
        return default_count if kind is InstanceKind.KIND_CPU else 1

    def _error(self, field: str, message: str, *, expected: str = "") -> None:
        self.problems.append(self._source.problem(f"{self._path}.{field}", message, expected=expected))
