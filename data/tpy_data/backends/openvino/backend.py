"""The openvino backend."""

from __future__ import annotations

import openvino

from tpy.backend import BackendCapabilities, BackendSettings
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import default_max_batch_size
from tpy_data.backends.file_backend import FileBackend
from tpy_data.backends.openvino.model import FILENAMES, OpenVinoModel
from tpy_data.backends.openvino.network import VERSION


def openvino_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
    if any(device.startswith("GPU") for device in openvino.Core().available_devices):
        devices.add(InstanceKind.KIND_GPU)
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename=FILENAMES[0],
        devices=frozenset(devices),
        implicit_state=True,
        ragged=True,
        batch_io=True,
        version=VERSION,
    )
    return FileBackend(capabilities, OpenVinoModel, default_max_batch_size=default_max_batch_size(settings.config))
