"""The openvino_genai backend, and its loaded models."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import metadata
from typing import Final

import msgspec

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, ModelContext
from tpy.backend.engine import Engine, EngineModel
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.errors import Unavailable
from tpy_backends.openvino_genai.model_folder import GGUF_FILE, LanguageModelFacts, facts_of
from tpy_backends.openvino_genai.settings import EngineSettings, available_memory, settings_of
from tpy_backends.parameter_values import parse_integer
from tpy_data.backends.creation import Needs, importing

DISTRIBUTION: Final = "openvino-genai"
TRIED: Final = "2026.4"
"""The version that the tests ran with."""

_DEVICES: Final[Mapping[InstanceKind, str]] = {InstanceKind.KIND_GPU: "GPU"}


class GenAiBackend:
    """An `EngineBackend`. Nothing of OpenVINO GenAI is imported before an engine is made, so that configurations are completed at
    once."""

    def __init__(self, settings: BackendSettings, needs: Needs) -> None:
        """Raises Unavailable, with what `needs` says, when the package is not installed."""
        with importing(needs, name=settings.name):
            if importlib.util.find_spec("openvino_genai") is None:
                raise ImportError("No module named 'openvino_genai'")
        self._version = metadata.version(DISTRIBUTION)
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=GGUF_FILE,
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL, InstanceKind.KIND_GPU}),
            decoupled=True,
            engine=True,
            version=self._version,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        """The same always."""
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """The scheduler's settings and the chat template, as parameters, unless the configuration has them. Raises TpyError."""
        config = context.config
        facts = facts_of(context)
        settings = settings_of(config, facts, available_memory())
        found = dict(settings.parameters())
        if not config.parameter("chat_template") and not config.parameter("tokenizer"):
            found |= {name: ModelParameter(string_value=text) for name, text in facts.parameters.items()}
        return msgspec.structs.replace(config, parameters={**found, **config.parameters})

    def load(self, context: ModelContext) -> EngineModel:
        """Loads nothing yet: an engine has its weights. Raises TpyError."""
        if not self._version.startswith(f"{TRIED}."):
            context.log(
                "warning",
                f"model '{context.name}': OpenVINO GenAI {self._version} is installed, and {TRIED} was tried with this server",
            )
        facts = facts_of(context)
        return GenAiModel(context, facts, settings_of(context.config, facts, available_memory()))

    def close(self) -> None:
        """Nothing is open."""


class GenAiModel:
    """An `EngineModel`."""

    def __init__(self, context: ModelContext, facts: LanguageModelFacts, settings: EngineSettings) -> None:
        self._context = context
        self._facts = facts
        self._settings = settings

    def create_engine(self, placement: InstancePlacement) -> Engine:
        """Raises TpyError."""
        try:
            from tpy_backends.openvino_genai.engine import GenAiEngine
        except ImportError as error:
            raise Unavailable(f"OpenVINO GenAI cannot be imported: {error}") from error
        config = self._context.config
        properties: dict[str, object] = {}
        threads = config.parameter("INFERENCE_NUM_THREADS") or (
            str(len(placement.host.cpu_cores)) if placement.host.cpu_cores else ""
        )
        if threads:
            properties["INFERENCE_NUM_THREADS"] = parse_integer(threads, bits=32)
        return GenAiEngine(self._facts, _DEVICES.get(placement.kind, "CPU"), self._settings, properties)

    def unload(self) -> None:
        """Nothing is shared."""
