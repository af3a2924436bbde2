"""Placing on machines that these tests do not run on. What Triton 2.51 answers on a machine without GPUs was asked of it."""

from __future__ import annotations

import pytest

from tpy.backend import BackendCapabilities
from tpy.config import ConfigError, ModelConfig
from tpy.config.model_config import InstanceGroup, InstanceKind, RateLimiter, SecondaryDevice
from tpy_data.engine.loading.placing import Machine, Placed, place
from tpy_data.engine.loading.support import without_effect
from tpy_data.gpus import NO_GPUS, Gpu, GpuInventory

CPU, GPU = InstanceKind.KIND_CPU, InstanceKind.KIND_GPU
MODEL, AUTO = InstanceKind.KIND_MODEL, InstanceKind.KIND_AUTO

EVERYWHERE = BackendCapabilities(name="b", default_model_filename="m", devices=frozenset({CPU, GPU, MODEL}), default_count=2)
ONLY_CPU = BackendCapabilities(name="b", default_model_filename="m")
WITHOUT_PACKAGE = BackendCapabilities(name="b", default_model_filename="m", gpus_unusable="no CUDA provider; pip install it")

NONE = Machine()
ONE = Machine(inventory=GpuInventory(gpus=(Gpu(id=0, compute_capability=(9, 0)),)))
OLD_AND_NEW = GpuInventory(
    gpus=(Gpu(id=0, compute_capability=(5, 2)), Gpu(id=1, compute_capability=(7, 5)), Gpu(id=2, compute_capability=(9, 0)))
)
THREE = Machine(inventory=OLD_AND_NEW)


def placed(*groups: InstanceGroup, machine: Machine = NONE, backend: BackendCapabilities = EVERYWHERE) -> Placed:
    return place(ModelConfig(name="m", instance_group=groups), machine, backend)


def where(result: Placed) -> list[tuple[str, InstanceKind, int]]:
    return [(each.placement.name, each.placement.kind, each.placement.device_id) for each in result.instances]


def refusal(*groups: InstanceGroup, machine: Machine = NONE, backend: BackendCapabilities = EVERYWHERE) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        placed(*groups, machine=machine, backend=backend)
    return [problem.message for problem in caught.value.problems if problem.is_error]


def test_a_model_without_groups() -> None:
    assert where(placed()) == [("m_0", CPU, 0), ("m_1", CPU, 0)]
    assert where(placed(machine=ONE)) == [("m_0", GPU, 0)]
    assert where(placed(machine=THREE)) == [("m_0", GPU, 1), ("m_0", GPU, 2)]
    assert where(placed(machine=ONE, backend=ONLY_CPU)) == [("m_0", CPU, 0)]
    assert not placed(machine=ONE, backend=ONLY_CPU).warnings


def test_every_gpu_of_a_group_gets_its_count() -> None:
    result = placed(InstanceGroup(kind=GPU, count=2), InstanceGroup(kind=GPU, gpus=(2,)), machine=THREE)
    assert where(result) == [
        ("m_0_0", GPU, 1),
        ("m_0_1", GPU, 1),
        ("m_0_0", GPU, 2),
        ("m_0_1", GPU, 2),
        ("m_1_0", GPU, 2),
    ]
    assert [group.gpus for group in result.config.instance_group] == [(1, 2), (2,)]
    assert [each.placement.host_policy for each in result.instances] == ["gpu_1", "gpu_1", "gpu_2", "gpu_2", "gpu_2"]


def test_groups_of_all_kinds_side_by_side() -> None:
    groups = (InstanceGroup(kind=CPU, count=2), InstanceGroup(kind=AUTO, name="named"), InstanceGroup(kind=MODEL))
    assert where(placed(*groups)) == [
        ("m_0_0", CPU, 0),
        ("m_0_1", CPU, 0),
        ("named_0", CPU, 0),
        ("named_1", CPU, 0),
        ("m_2_0", MODEL, 0),
    ]
    assert where(placed(*groups, machine=ONE)) == [("m_0_0", CPU, 0), ("m_0_1", CPU, 0), ("named_0", GPU, 0), ("m_2_0", MODEL, 0)]


@pytest.mark.parametrize("gpus", [(), (1,), (1, 2)])
def test_auto_goes_to_the_gpus_that_it_lists(gpus: tuple[int, ...]) -> None:
    assert [device for _, _, device in where(placed(InstanceGroup(gpus=gpus), machine=THREE))] == list(gpus or (1, 2))


def test_auto_goes_to_the_cpu_when_one_of_its_gpus_is_not_there() -> None:
    """As model_config.proto says. Triton refuses it: "instance group m_0 of model m has kind KIND_CPU but specifies one or more
    GPUs"."""
    for machine in (NONE, ONE):
        result = placed(InstanceGroup(gpus=(0, 1), count=1), machine=machine)
        assert (where(result), result.config.instance_group[0].gpus) == ([("m_0_0", CPU, 0)], ())


@pytest.mark.parametrize("kind", [CPU, MODEL])
def test_gpus_of_other_kinds_are_refused(kind: InstanceKind) -> None:
    """Triton's text."""
    group = InstanceGroup(kind=kind, gpus=(0,))
    assert refusal(group) == [f"instance group m_0 of model m has kind {kind.name} but specifies one or more GPUs"]


def test_a_gpu_that_is_not_there_or_too_old() -> None:
    """Triton's text, with what --min-supported-compute-capability was given: 7.500000 there, too."""
    machine = Machine(inventory=OLD_AND_NEW, compute_capability_min=7.5)
    assert refusal(InstanceGroup(kind=GPU, gpus=(0, 1, 7)), machine=machine) == [
        f"instance group m_0 of model m specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
        "CUDA compute compatibility of 7.500000 are: 1, 2"
        for gpu in (0, 7)
    ]


def test_gpus_that_are_all_too_old_are_named() -> None:
    machine = Machine(inventory=OLD_AND_NEW, compute_capability_min=12)
    text = (
        "instance group m_0 of model m has kind KIND_GPU but no GPUs are available: --min-supported-compute-capability is 12, "
        "and GPU 0 has 5.2, GPU 1 has 7.5, GPU 2 has 9.0"
    )
    assert refusal(InstanceGroup(kind=GPU), machine=machine) == [text]
    assert where(placed(InstanceGroup(count=1), machine=machine)) == [("m_0_0", CPU, 0)]


@pytest.mark.parametrize(("least", "used"), [(5.2, (0, 1, 2)), (6.0, (1, 2)), (7.5, (1, 2)), (7.6, (2,)), (9.1, ())])
def test_the_least_compute_capability(least: float, used: tuple[int, ...]) -> None:
    assert Machine(inventory=OLD_AND_NEW, compute_capability_min=least).gpus == used


def test_a_gpu_of_which_its_driver_does_not_say_is_used() -> None:
    assert Machine(inventory=GpuInventory(gpus=(Gpu(id=0),))).gpus == (0,)


def test_gpu_groups_where_there_is_no_gpu() -> None:
    """Triton refuses: "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"."""
    result = placed(InstanceGroup(kind=GPU, gpus=(0,), count=3))
    assert [kind for _, kind, _ in where(result)] == [CPU] * 3
    text = (
        "warning: instance_group[0].kind: instance group m_0 of model m has kind KIND_GPU but no GPUs are available; its "
        "instances are placed on the CPU"
    )
    assert [str(warning) for warning in result.warnings] == [text]


def test_gpu_groups_never_leave_gpus_that_are_there() -> None:
    prefix = "instance group m_0 of model m has kind KIND_GPU but no GPUs are available: "
    group = InstanceGroup(kind=GPU)
    assert refusal(group, machine=ONE, backend=ONLY_CPU) == [f"{prefix}backend 'b' does not run on GPUs"]
    assert refusal(group, machine=ONE, backend=WITHOUT_PACKAGE) == [f"{prefix}no CUDA provider; pip install it"]
    broken = Machine(inventory=GpuInventory(trouble="the driver refuses: CUDA error 803"))
    assert refusal(group, machine=broken) == [f"{prefix}the driver refuses: CUDA error 803"]


@pytest.mark.parametrize("groups", [(), (InstanceGroup(count=2),)])
def test_a_missing_package_that_keeps_a_model_off_the_gpus_is_named(groups: tuple[InstanceGroup, ...]) -> None:
    result = placed(*groups, machine=ONE, backend=WITHOUT_PACKAGE)
    assert [kind for _, kind, _ in where(result)] == [CPU] * max(1, 2 * len(groups))
    assert [warning.message for warning in result.warnings] == [
        "instances of model 'm' are placed on the CPU, though there are GPUs: no CUDA provider; pip install it"
    ]
    assert not placed(*groups, backend=WITHOUT_PACKAGE).warnings
    assert not placed(InstanceGroup(kind=CPU), machine=ONE, backend=WITHOUT_PACKAGE).warnings


def test_counts_below_one() -> None:
    """As Triton, whose default is 2 for some backends on a CPU."""
    for count in (0, -3):
        assert len(placed(InstanceGroup(kind=CPU, count=count)).instances) == 2
        assert len(placed(InstanceGroup(kind=GPU, count=count), machine=ONE).instances) == 1


def test_what_a_group_says_reaches_its_instances() -> None:
    dla = SecondaryDevice(device_id=1)
    limits = RateLimiter(priority=2)
    group = InstanceGroup(kind=GPU, secondary_devices=(dla,), passive=True, rate_limiter=limits, host_policy="p")
    machine = Machine(inventory=ONE.inventory, gpu_limits={0: 0.5})
    (instance,) = placed(group, machine=machine).instances
    assert (instance.passive, instance.limits, instance.gpu_share_max) == (True, limits, 0.5)
    assert (instance.placement.secondary_devices, instance.placement.host_policy) == ((dla,), "p")


def test_limits_of_a_gpus_memory_are_nothing_to_a_cpu() -> None:
    assert placed(InstanceGroup(kind=CPU), machine=Machine(gpu_limits={0: 0.5})).instances[0].gpu_share_max is None


def test_secondary_devices_have_an_effect_where_the_backend_uses_them() -> None:
    config = placed(InstanceGroup(kind=CPU, secondary_devices=(SecondaryDevice(),))).config
    assert without_effect(config, ONLY_CPU) == ("instance_group[0].secondary_devices",)
    uses = BackendCapabilities(name="b", default_model_filename="m", batch_io=True, secondary_devices=True)
    assert without_effect(config, uses) == ()


def test_ensembles_have_no_instances() -> None:
    assert place(ModelConfig(name="e", platform="ensemble"), ONE, EVERYWHERE).instances == ()
    assert NO_GPUS.gpus == ()
