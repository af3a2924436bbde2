"""Placement and names of instances."""

from __future__ import annotations

import pytest

from tpy.config import ConfigError, ModelConfig, instance_names, normalise_instance_groups, only_instances_differ
from tpy.config.model_config import EnsembleScheduling, InstanceGroup, InstanceKind, VersionPolicy, VersionPolicyAll

CPU = InstanceKind.KIND_CPU
GPU = InstanceKind.KIND_GPU
MODEL = InstanceKind.KIND_MODEL
AUTO = InstanceKind.KIND_AUTO


def groups(
    *given: InstanceGroup,
    gpus: tuple[int, ...] = (),
    supported: tuple[InstanceKind, ...] = (CPU, GPU),
    default_kind: InstanceKind = CPU,
    default_count: int = 1,
) -> tuple[InstanceGroup, ...]:
    config, _ = normalise_instance_groups(
        ModelConfig(name="m", backend="b", instance_group=given),
        gpus=gpus,
        supported=supported,
        default_kind=default_kind,
        default_count=default_count,
    )
    return config.instance_group


def test_no_group() -> None:
    assert groups() == (InstanceGroup(name="m", kind=CPU, count=1),)
    assert groups(default_count=2) == (InstanceGroup(name="m", kind=CPU, count=2),)
    assert groups(gpus=(0, 1), default_count=2) == (InstanceGroup(name="m", kind=GPU, count=1, gpus=(0, 1)),)
    assert groups(gpus=(0, 1), supported=(CPU,)) == (InstanceGroup(name="m", kind=CPU, count=1),)
    assert groups(gpus=(0,), default_kind=MODEL, supported=(MODEL,)) == (InstanceGroup(name="m", kind=MODEL, count=1),)
    assert groups(supported=(MODEL,), default_kind=AUTO) == (InstanceGroup(name="m", kind=MODEL, count=1),)


def test_given_groups() -> None:
    assert groups(InstanceGroup(kind=CPU, count=2), InstanceGroup(name="n"), InstanceGroup(kind=GPU, gpus=(1,)), gpus=(0, 1)) == (
        InstanceGroup(name="m_0", kind=CPU, count=2),
        InstanceGroup(name="n", kind=GPU, count=1, gpus=(0, 1)),
        InstanceGroup(name="m_2", kind=GPU, count=1, gpus=(1,)),
    )


def test_auto_with_a_gpu_that_is_not_there_goes_to_the_cpu() -> None:
    assert groups(InstanceGroup(gpus=(7,)), gpus=(0,)) == (InstanceGroup(name="m_0", kind=CPU, count=1),)


def test_gpu_groups_go_to_the_cpu_of_a_machine_without_gpus() -> None:
    config, warnings = normalise_instance_groups(
        ModelConfig(name="m", instance_group=(InstanceGroup(kind=GPU, gpus=(0, 1), count=2),)), gpus=(), supported=(CPU, GPU)
    )
    assert config.instance_group == (InstanceGroup(name="m_0", kind=CPU, count=2),)
    assert [str(warning) for warning in warnings] == [
        (
            "warning: instance_group[0].kind: instance group m_0 of model m has kind KIND_GPU but no GPUs are available; "
            "its instances are placed on the CPU"
        )
    ]


def test_what_cannot_be_placed() -> None:
    with pytest.raises(ConfigError) as caught:
        groups(
            InstanceGroup(kind=GPU, gpus=(0, 9)),
            InstanceGroup(kind=MODEL),
            InstanceGroup(kind=CPU, gpus=(0,)),
            InstanceGroup(kind=CPU, count=1_000_000),
            gpus=(0, 1),
        )
    assert str(caught.value).split("\n") == [
        "instance_group[2].gpus: instance group m_2 of model m has kind KIND_CPU but specifies one or more GPUs",
        "instance_group[3].count: instance group m_3 of model m has count 1000000; expected at most 4096",
        (
            "instance_group[0].gpus[1]: instance group m_0 of model m specifies invalid or unsupported gpu id 9. GPUs with at "
            "least the minimum required CUDA compute compatibility of 6.000000 are: 0, 1"
        ),
        (
            "instance_group[1].kind: instance group m_1 of model m has kind KIND_MODEL, which its backend does not support; "
            "expected one of KIND_CPU, KIND_GPU"
        ),
    ]
    with pytest.raises(ConfigError, match="has kind KIND_GPU but no GPUs are available"):
        groups(InstanceGroup(kind=GPU), supported=(GPU,))


def test_many_groups_have_no_more_instances_than_one_may() -> None:
    groups(*[InstanceGroup(kind=CPU, count=2048)] * 2)
    with pytest.raises(ConfigError) as caught:
        groups(*[InstanceGroup(kind=CPU, count=2048)] * 2, InstanceGroup(kind=CPU))
    assert str(caught.value) == "instance_group: the instance groups of model m have 4097 instances; expected at most 4096"


def test_ensembles_have_none() -> None:
    ensemble = ModelConfig(name="e", platform="ensemble", ensemble_scheduling=EnsembleScheduling())
    assert normalise_instance_groups(ensemble, gpus=(0,), supported=(CPU,)) == (ensemble, ())


def test_names() -> None:
    default = ModelConfig(name="m", instance_group=groups(default_count=2))
    assert instance_names(default) == (("m_0", "m_1"),)
    given = ModelConfig(name="m", instance_group=groups(InstanceGroup(count=2), InstanceGroup(name="x")))
    assert instance_names(given) == (("m_0_0", "m_0_1"), ("x_0",))


def test_only_instances_differ() -> None:
    old = ModelConfig(name="m", max_batch_size=4)
    assert only_instances_differ(old, ModelConfig(name="m", max_batch_size=4, instance_group=(InstanceGroup(),)))
    assert only_instances_differ(
        old, ModelConfig(name="m", max_batch_size=4, version_policy=VersionPolicy(all=VersionPolicyAll()))
    )
    assert not only_instances_differ(old, ModelConfig(name="m", max_batch_size=4))
    assert not only_instances_differ(old, ModelConfig(name="m", max_batch_size=5, instance_group=(InstanceGroup(),)))
