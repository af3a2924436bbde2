"""The sklearn backend: completes configurations, loads models."""

from __future__ import annotations

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext, ModelInstance
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import DEFAULT_MAX_BATCH_SIZE, complete, is_complete
from tpy_data.backends.named_tensors import named_instance
from tpy_data.backends.parameter_values import parse_integer
from tpy_data.backends.sklearn.estimator import Estimator
from tpy_data.backends.sklearn.files import VERSION, Trust, read_estimator, read_trust
from tpy_data.backends.validation import validate


class SklearnModel:
    """A `LoadedModel`: one estimator, which all instances call."""

    def __init__(self, context: ModelContext, trust: Trust) -> None:
        """Reads the file. Raises TpyError."""
        self._config = context.config
        self.estimator = Estimator(read_estimator(context, trust), context.config)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """As `LoadedModel`."""
        return named_instance(self.estimator, self.estimator.signature, self._config)

    def unload(self) -> None:
        """As `LoadedModel`: the estimator goes with the last instance."""
        del self.estimator


class SklearnBackend:
    """One per server, or per worker."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._default_max_batch_size = parse_integer(settings.config.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE)))
        self._trust = read_trust(settings.config)
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename="",  # one for each way to save
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
            version=VERSION,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From the estimator. Raises TpyError."""
        config = context.config
        if is_complete(config):
            context.log("verbose", f"skipping model configuration auto-complete for '{config.name}': inputs and outputs given")
            return config
        model = SklearnModel(context, self._trust)
        return complete(config, model.estimator.signature, default_max_batch_size=self._default_max_batch_size)

    def load(self, context: ModelContext) -> LoadedModel:
        """Reads the file at once, so that a broken model fails here."""
        model = SklearnModel(context, self._trust)
        validate(context.config, model.estimator.signature)
        return model

    def close(self) -> None:
        pass
