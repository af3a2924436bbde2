"""`tpy check --deep`: loads each model once, as the server would, makes one instance of it, and lets it go again."""

from __future__ import annotations

from tpy.config import ModelConfig, Severity
from tpy.errors import TpyError
from tpy.state import DesiredModel, DesiredVersion
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_control import LoadTrial
from tpy_data.engine.loading.loaded_version import Loader
from tpy_data.engine.loading.placing import Machine
from tpy_data.gpus import GpuInventory
from tpy_data.registry import BackendRegistry


class DeepCheck:
    """Tries models with the backends of `registry`; `gpus` are the devices that instances may be placed on."""

    def __init__(self, registry: BackendRegistry, gpus: GpuInventory) -> None:
        self._warnings: list[str] = []
        machine = Machine(inventory=gpus)
        self._loader = Loader(registry, server_id="triton", log=self._log, metrics=CustomMetrics(), machine=machine)

    def __call__(self, desired: DesiredModel) -> LoadTrial:
        """Try all versions. Runs the code of a Python model up to its `initialize`."""
        config: ModelConfig | None = None
        findings: list[tuple[Severity, str]] = []
        for version in desired.versions.values():
            self._warnings.clear()
            try:
                config = self._try(desired, version)
            except TpyError as error:
                findings.append((Severity.ERROR, f"version {version.version} does not load: {error.message}"))
            except Exception as error:
                text = f"version {version.version} does not load: {type(error).__name__}: {error}"
                findings.append((Severity.ERROR, text))
            findings.extend((Severity.WARNING, text) for text in dict.fromkeys(self._warnings))
        return LoadTrial(config, tuple(findings))

    def _try(self, desired: DesiredModel, version: DesiredVersion) -> ModelConfig:
        loaded = self._loader.load(desired, version)
        try:
            loaded.model.create_instance(loaded.instances[0].placement).close()
        finally:
            loaded.model.unload()
        return loaded.config

    def _log(self, level: str, message: str) -> None:
        if level == "warning":
            self._warnings.append(message)
