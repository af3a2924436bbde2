"""The sklearn backend, and its loaded models."""

from __future__ import annotations

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, ModelContext, ModelInstance
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import default_max_batch_size
from tpy_data.backends.file_backend import FileBackend
from tpy_data.backends.named_tensors import named_instance
from tpy_data.backends.signature import Signature
from tpy_data.backends.sklearn.estimator import Estimator
from tpy_data.backends.sklearn.files import VERSION, Trust, read_estimator, read_trust
from tpy_data.backends.validation import validate


class SklearnModel:
    """A `LoadedModel`: one estimator, which all instances call."""

    def __init__(self, context: ModelContext, trust: Trust) -> None:
        """Reads the file. Raises TpyError."""
        self._config = context.config
        self._estimator = Estimator(read_estimator(context, trust), context.config)

    def signature(self) -> Signature:
        """As the estimator has it."""
        return self._estimator.signature

    def prepare(self) -> None:
        """As `FileModel`: checks the configuration. Raises InvalidArgument."""
        validate(self._config, self._estimator.signature)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """As `LoadedModel`."""
        return named_instance(self._estimator, self._estimator.signature, self._config)

    def unload(self) -> None:
        """As `LoadedModel`: the estimator goes with the last instance."""
        del self._estimator


def sklearn_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    trust = read_trust(settings.config)
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename="",  # one for each way to save
        devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
        version=VERSION,
    )
    return FileBackend(
        capabilities,
        lambda context: SklearnModel(context, trust),
        default_max_batch_size=default_max_batch_size(settings.config),
    )
