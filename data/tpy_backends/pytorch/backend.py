"""The pytorch backend: loads models, and completes configurations by what an exported program says of its inputs, outputs and
batches. Triton completes nothing of PyTorch's models."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext, state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.completion import dims_of, is_complete, with_batching, without_batching
from tpy_backends.pytorch.model import DEFAULT_FILENAME, PyTorchModel
from tpy_backends.pytorch.names import input_positions, output_positions
from tpy_backends.pytorch.settings import RUNTIME, backend_config
from tpy_backends.pytorch.signature import ModuleInput, ModuleOutput, ModuleSignature, ValueKind
from tpy_data.backends.python import create as create_python_backend


def complete(config: ModelConfig, signature: ModuleSignature, *, default_max_batch_size: int) -> ModelConfig:
    """Fill in the batch size, a batcher, and whichever of the lists of inputs and outputs is empty.

    Raises InvalidArgument where the file does not say enough, and for a max_batch_size on a model that does not batch.
    """
    if is_complete(config):
        return config
    if not signature.is_described:
        raise InvalidArgument(
            f"model '{config.name}': its configuration must list inputs and outputs with data_type and dims, because its "
            f"file does not tell them; it says {signature.text()}"
        )
    if signature.batches:
        largest = default_max_batch_size if signature.batch_max is None else min(default_max_batch_size, signature.batch_max)
        config = with_batching(config, largest)
    else:
        config = without_batching(config, f": {signature.text()}")
    batches = config.max_batch_size > 0
    if not (config.input or config.batch_input):
        made = input_positions(config, signature).values()
        inputs = tuple(
            _input(argument, batches=batches) for position, argument in enumerate(signature.inputs) if position not in made
        )
        config = msgspec.structs.replace(config, input=inputs)
    if not config.output:
        kept = {name: output_positions(config, signature)[name] for name in (spec.output_name for spec in state_specs(config))}
        results = signature.outputs or ()
        outputs = tuple(
            _output(result, position, batches=batches) for position, result in enumerate(results) if position not in kept.values()
        )
        config = msgspec.structs.replace(config, output=outputs)
    return config


def _input(argument: ModuleInput, *, batches: bool) -> ModelInput:
    dims, reshape = dims_of(argument.shape or (), batches=batches)
    return ModelInput(
        name=argument.name,
        data_type=argument.datatype or DataType.INVALID,
        dims=dims,
        reshape=reshape,
        optional=argument.kind is ValueKind.TENSOR and not argument.required,
    )


def _output(result: ModuleOutput, position: int, *, batches: bool) -> ModelOutput:
    dims, reshape = dims_of(result.shape or (), batches=batches)
    return ModelOutput(
        name=result.key or f"OUTPUT__{position}", data_type=result.datatype or DataType.INVALID, dims=dims, reshape=reshape
    )


_RUNTIME_FOLDER = Path(__file__).parent / "runtime"


def _without_cuda() -> str:
    """The reason why nothing runs on a GPU, with what to do."""
    if torch.version.cuda is None:
        return (
            f"the installed PyTorch {torch.__version__} is a build without CUDA; install one for the CUDA of this machine, see "
            "https://pytorch.org/get-started"
        )
    return f"PyTorch {torch.__version__} with CUDA {torch.version.cuda} finds no usable GPU; check nvidia-smi"


class PyTorchBackend:
    """One per server. Models with `runtime: "model.py"` run in workers of its own Python backend, as in Triton."""

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
            version=str(torch.__version__),  # its class cannot be sent to a worker
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
