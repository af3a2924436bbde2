"""The pytorch backend: completes configurations, loads models."""

from __future__ import annotations

from pathlib import Path

import torch

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy_data.backends.completion import is_complete
from tpy_data.backends.python import create as create_python_backend
from tpy_data.backends.pytorch.completion import complete
from tpy_data.backends.pytorch.model import DEFAULT_FILENAME, PyTorchModel
from tpy_data.backends.pytorch.settings import RUNTIME, backend_config

_RUNTIME_FOLDER = Path(__file__).parent / "runtime"


def _without_cuda() -> str:
    """The reason why nothing runs on a GPU, with what to do."""
    if torch.version.cuda is None:
        return (
            f"the installed PyTorch {torch.__version__} is a build without CUDA; install one for the CUDA of this machine, see "
            "https://pytorch.org/get-started"
        )
    return f"PyTorch {torch.__version__} with CUDA {torch.version.cuda} finds no GPU that it can use; look at nvidia-smi"


class PyTorchBackend:
    """One per server. Models with `runtime: "model.py"` run in workers of a Python backend of its own, as in Triton."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._config = backend_config(settings.config)
        self._classes = create_python_backend(
            BackendSettings(name=settings.name, config=settings.config, backend_directory=_RUNTIME_FOLDER)
        )
        devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
        if torch.cuda.is_available():
            devices.add(InstanceKind.KIND_GPU)
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=DEFAULT_FILENAME,
            devices=frozenset(devices),
            implicit_state=True,
            ragged=True,
            batch_io=True,
            gpus_unusable="" if torch.cuda.is_available() else _without_cuda(),
            version=str(torch.__version__),  # of a class of its own, which no message to a worker holds
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """From exported programs, which say what their tensors are. Raises InvalidArgument for what no file tells."""
        config = context.config
        if is_complete(config) or config.runtime == RUNTIME:
            context.log("verbose", f"skipping model configuration auto-complete for '{config.name}'")
            return config
        model = PyTorchModel(context)
        try:
            signature = model.program(InstancePlacement(name=config.name, kind=InstanceKind.KIND_CPU)).signature
        finally:
            model.unload()
        return complete(config, signature, default_max_batch_size=self._config.default_max_batch_size)

    def load(self, context: ModelContext) -> LoadedModel:
        """Reads the file at once, so that a broken model fails here; a GPU's instances read it when they are created."""
        if context.config.runtime == RUNTIME:
            return self._classes.load(context)
        model = PyTorchModel(context)
        model.prepare()
        return model

    def close(self) -> None:
        """Ends the workers' spawner."""
        self._classes.close()
