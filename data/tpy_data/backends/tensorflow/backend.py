"""The tensorflow backend: completes configurations, loads models."""

from __future__ import annotations

import tensorflow as tf

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import complete, is_complete
from tpy_data.backends.signature import Signature
from tpy_data.backends.tensorflow.files import meta_graph, signature_of
from tpy_data.backends.tensorflow.model import SAVEDMODEL_FOLDER, TensorFlowModel
from tpy_data.backends.tensorflow.settings import backend_config, model_settings

_INSTANCES_ON_CPU = 2
"""Triton's default count for TensorFlow models on a CPU."""


class TensorFlowBackend:
    """One per server."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._config = backend_config(settings.config)
        tf.get_logger().setLevel("ERROR")  # it warns of its own older interfaces
        devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
        if tf.config.list_physical_devices("GPU"):
            devices.add(InstanceKind.KIND_GPU)
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=SAVEDMODEL_FOLDER,
            devices=frozenset(devices),
            default_count=_INSTANCES_ON_CPU,
            implicit_state=True,
            ragged=True,
            batch_io=True,
            version=tf.__version__,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the signature of a SavedModel, which is read without its weights; from a frozen graph's placeholders and ends.
        Raises TpyError."""
        config = context.config
        if is_complete(config):
            context.log("verbose", f"skipping model configuration auto-complete for '{config.name}': inputs and outputs given")
            return config
        return complete(config, self._signature(context), default_max_batch_size=self._config.default_max_batch_size)

    def load(self, context: ModelContext) -> LoadedModel:
        """Opens the first session at once, so that a broken model fails here."""
        model = TensorFlowModel(context, self._config)
        model.prepare()
        return model

    def close(self) -> None:
        pass

    def _signature(self, context: ModelContext) -> Signature:
        config, model = context.config, TensorFlowModel(context, self._config)
        if model.path.is_dir():
            settings = model_settings(config)
            return signature_of(meta_graph(model.path, config.name, settings), config.name, settings)[0]
        graph = model.load(InstancePlacement(name=config.name, kind=InstanceKind.KIND_CPU))
        graph.close()
        return graph.signature
