"""The openvino backend: completes configurations, loads models."""

from __future__ import annotations

import openvino

from tpy.backend import BackendCapabilities, BackendSettings, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import complete, is_complete
from tpy_data.backends.openvino.model import FILENAMES, OpenVinoModel
from tpy_data.backends.openvino.network import VERSION
from tpy_data.backends.openvino.settings import default_max_batch_size


class OpenVinoBackend:
    """One per server."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._default_max_batch_size = default_max_batch_size(settings.config)
        devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
        if any(device.startswith("GPU") for device in openvino.Core().available_devices):
            devices.add(InstanceKind.KIND_GPU)
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=FILENAMES[0],
            devices=frozenset(devices),
            implicit_state=True,
            ragged=True,
            batch_io=True,
            version=VERSION,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the file, as Triton. Raises TpyError."""
        config = context.config
        if is_complete(config):
            context.log("verbose", f"skipping model configuration auto-complete for '{config.name}': inputs and outputs given")
            return config
        signature = OpenVinoModel(context).network.signature
        return complete(config, signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, context: ModelContext) -> LoadedModel:
        """Reads and compiles at once, so that a broken model fails here."""
        model = OpenVinoModel(context)
        model.prepare()
        return model

    def close(self) -> None:
        pass
