"""The tensorflow backend."""

from __future__ import annotations

import tensorflow as tf

from tpy.backend import BackendCapabilities, BackendSettings
from tpy.config.model_config import InstanceKind
from tpy_data.backends.file_backend import FileBackend
from tpy_data.backends.tensorflow.model import SAVEDMODEL_FOLDER, TensorFlowModel
from tpy_data.backends.tensorflow.settings import backend_config

_INSTANCES_ON_CPU = 2
"""Triton's default count for TensorFlow models on a CPU."""


def tensorflow_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    config = backend_config(settings.config)
    tf.get_logger().setLevel("ERROR")  # it warns of its own older interfaces
    devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
    if tf.config.list_physical_devices("GPU"):
        devices.add(InstanceKind.KIND_GPU)
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename=SAVEDMODEL_FOLDER,
        devices=frozenset(devices),
        default_count=_INSTANCES_ON_CPU,
        implicit_state=True,
        ragged=True,
        batch_io=True,
        version=tf.__version__,
    )
    return FileBackend(
        capabilities,
        lambda context: TensorFlowModel(context, config),
        default_max_batch_size=config.default_max_batch_size,
    )
