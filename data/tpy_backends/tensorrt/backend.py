"""The tensorrt backend: completes configurations, loads models."""

from __future__ import annotations

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import Unavailable
from tpy_backends.tensorrt.completion import complete
from tpy_backends.tensorrt.library import Library, make_logger
from tpy_backends.tensorrt.model import FILENAMES, TensorRTModel
from tpy_backends.tensorrt.settings import TensorRTConfig


class TensorRTBackend:
    """One per server. Holds settings only; engines belong to the loaded models."""

    def __init__(self, settings: BackendSettings, config: TensorRTConfig, library: Library) -> None:
        """Loads the plugins of TensorRT, and the ones that the settings name. Raises Unavailable when one cannot be loaded."""
        self._config = config
        self._library = library
        logger = make_logger(library, lambda level, message: None)
        library.init_libnvinfer_plugins(logger, "")
        for path in config.plugins:
            try:
                handle = library.get_plugin_registry().load_library(path)
            except Exception as error:
                raise Unavailable(f"unable to load TensorRT plugin '{path}': {error}") from error
            if handle is None:
                reasons = logger.take_errors()
                raise Unavailable(f"unable to load TensorRT plugin '{path}': {reasons[0] if reasons else 'it is not a plugin'}")
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=FILENAMES[0],
            devices=frozenset({InstanceKind.KIND_GPU}),
            default_kind=InstanceKind.KIND_GPU,
            implicit_state=True,
            ragged=True,
            batch_io=True,
            secondary_devices=True,
            version=f"{library.__name__} {library.__version__}",
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the engine, which can be read on a GPU only. Raises TpyError."""
        config = context.config
        asked = [gpu for group in config.instance_group for gpu in group.gpus]
        devices = [*asked, *context.devices.ids]
        if not devices:
            raise Unavailable(
                f"unable to load plan file to auto complete config of model '{config.name}': an engine of TensorRT can be "
                "read on a GPU "
                "only, and this machine has no usable GPU"
            )
        placement = InstancePlacement(name=config.name, kind=InstanceKind.KIND_GPU, device_id=devices[0])
        return complete(config, self._model(context).signature(placement))

    def load(self, context: ModelContext) -> LoadedModel:
        """Makes the engine on the first instance's device, so that a broken model fails here."""
        model = self._model(context)
        model.prepare()
        return model

    def close(self) -> None:
        pass

    def _model(self, context: ModelContext) -> TensorRTModel:
        return TensorRTModel(context, self._library, version_compatible=self._config.version_compatible)
