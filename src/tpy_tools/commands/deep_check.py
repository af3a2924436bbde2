"""`tpy check --deep`: loads each model once, as the server would, makes an instance of it at each place where it is to have some,
runs its warm-up, and lets it go again. What cannot be tried here is an error: nothing is sound that was not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tpy.backend import InstancePlacement
from tpy.config import ModelConfig, Severity
from tpy.config.model_config import InstanceKind
from tpy.errors import TpyError
from tpy.state import DesiredModel, DesiredVersion
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_control.check import LoadTrial
from tpy_data.engine.loading.loaded_version import LoadedVersion, Loader
from tpy_data.engine.loading.placing import Machine, PlacedInstance
from tpy_data.engine.loading.warmup import run_samples
from tpy_data.gpus import GpuInventory
from tpy_data.registry import BackendRegistry


class DeepCheck:
    """Tries models with the backends of `registry`; `gpus` are the devices that instances may be placed on."""

    def __init__(self, registry: BackendRegistry, gpus: GpuInventory) -> None:
        self._warnings: list[str] = []
        machine = Machine(inventory=gpus)
        self._loader = Loader(registry, server_id="triton", log=self._log, metrics=CustomMetrics(), machine=machine)

    def __call__(self, desired: DesiredModel) -> LoadTrial:
        """Try all versions. Runs the code of a Python model up to its `initialize`, and further where it has a warm-up."""
        config: ModelConfig | None = None
        findings: list[tuple[Severity, str]] = []
        for version in desired.versions.values():
            self._warnings.clear()
            try:
                loaded = self._try(desired, version)
                config = loaded.config
                findings.extend((Severity.ERROR, text) for text in _not_tried(desired.config, loaded.instances))
            except TpyError as error:
                findings.append((Severity.ERROR, f"version {version.version} does not load: {error.message}"))
            except Exception as error:
                text = f"version {version.version} does not load: {type(error).__name__}: {error}"
                findings.append((Severity.ERROR, text))
            findings.extend((Severity.WARNING, text) for text in dict.fromkeys(self._warnings))
        return LoadTrial(config, tuple(findings))

    def _try(self, desired: DesiredModel, version: DesiredVersion) -> LoadedVersion:
        """Returns what is not there any more."""
        loaded = self._loader.load(desired, version)
        try:
            for placement in _places(loaded.instances):
                instance = loaded.model.create_instance(placement)
                try:
                    run_samples(instance, loaded.samples, name=placement.name)
                finally:
                    instance.close()
        finally:
            loaded.model.unload()
        return loaded

    def _log(self, level: str, message: str) -> None:
        if level == "warning":
            self._warnings.append(message)


def _places(instances: Iterable[PlacedInstance]) -> Iterator[InstancePlacement]:
    """One of the instances of each group and device."""
    seen: set[object] = set()
    for each in instances:
        place = each.placement
        key = (place.group, place.kind, place.device_id)
        if key not in seen:
            seen.add(key)
            yield place


def _not_tried(given: ModelConfig, instances: Iterable[PlacedInstance]) -> Iterator[str]:
    """Texts about what the configuration wants and this machine cannot show."""
    if any(each.placement.kind is InstanceKind.KIND_GPU for each in instances):
        return
    if any(group.kind is InstanceKind.KIND_GPU for group in given.instance_group):
        yield "its instances on GPUs were not checked: there is no GPU here, and a server here would place them on the CPU"
