"""The onnxruntime backend: completes configurations, loads models."""

from __future__ import annotations

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, LoadedModel, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal
from tpy_backends.completion import complete, is_complete
from tpy_backends.onnxruntime.model import DEFAULT_FILENAME, OnnxModel
from tpy_backends.onnxruntime.providers import CUDA, without_cuda
from tpy_backends.onnxruntime.session import VERSION, offered_providers, start_runtime
from tpy_backends.onnxruntime.settings import backend_config
from tpy_backends.signature import Signature
from tpy_backends.validation import warn_of_outputs_left_out

_INSTANCES_ON_CPU = 2
"""Triton's default count for ONNX models on a CPU."""


class OnnxRuntimeBackend:
    """One per server. Holds settings only; sessions belong to the loaded models."""

    def __init__(self, settings: BackendSettings) -> None:
        """Raises InvalidArgument for a bad `--backend-config` value."""
        self._config = backend_config(settings.config)
        start_runtime(self._config)
        devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
        if CUDA in offered_providers():
            devices.add(InstanceKind.KIND_GPU)
        self._capabilities = BackendCapabilities(
            name=settings.name,
            default_model_filename=DEFAULT_FILENAME,
            devices=frozenset(devices),
            default_count=_INSTANCES_ON_CPU,
            implicit_state=True,
            ragged=True,
            batch_io=True,
            gpus_unusable=without_cuda(offered_providers()),
            version=VERSION,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """Opens the model, with the options that loading will use, because what is inferred of outputs depends on them; without
        threads."""
        config = context.config
        if is_complete(config):
            context.log(
                "verbose", f"skipping model configuration auto-complete for '{config.name}': inputs and outputs already specified"
            )
            return config
        signature = self._signature(context)
        completed = complete(config, signature, default_max_batch_size=self._config.default_max_batch_size)
        if completed.max_batch_size != config.max_batch_size:
            context.log(
                "warning",
                f"autofilled max_batch_size to {completed.max_batch_size} for model '{config.name}' since batching is supported "
                "but no max_batch_size is specified in model configuration. Must specify max_batch_size to utilize autofill "
                "with a larger max batch size",
            )
        return completed

    def load(self, context: ModelContext) -> LoadedModel:
        """Opens the CPU's session at once, so that a broken model fails here; a GPU's is opened by its first instance."""
        config = context.config
        model = OnnxModel(context, self._config)
        on_gpu = [group.kind is InstanceKind.KIND_GPU for group in config.instance_group]
        if not all(on_gpu) or not on_gpu:
            anywhere = InstancePlacement(name=context.name, kind=InstanceKind.KIND_CPU)
            given = (placement for placement in context.placements if placement.kind is not InstanceKind.KIND_GPU)
            warn_of_outputs_left_out(context, model.validated_session(next(given, anywhere)).signature)
        accelerators = config.optimization.execution_accelerators if config.optimization is not None else None
        if accelerators is not None and accelerators.gpu_execution_accelerator and not any(on_gpu):
            names = ", ".join(accelerator.name for accelerator in accelerators.gpu_execution_accelerator)
            context.log(
                "warning",
                f"model '{config.name}': gpu_execution_accelerator ({names}) has no effect without an instance on a GPU",
            )
        return model

    def close(self) -> None:
        pass

    def _signature(self, context: ModelContext) -> Signature:
        """Read on a GPU when an instance is to run on one: some operators exist there only. Whether there is a GPU nobody
        has looked yet, so the CPU is tried when that fails."""
        config = context.config
        model = OnnxModel(context, self._config, is_run=False)
        wants_gpu = any(group.kind is InstanceKind.KIND_GPU for group in config.instance_group)
        try:
            if wants_gpu and InstanceKind.KIND_GPU in self._capabilities.devices:
                try:
                    return model.session(InstancePlacement(name=config.name, kind=InstanceKind.KIND_GPU)).signature
                except Internal as error:
                    context.log("verbose", f"model '{config.name}' is read on the CPU: {error}")
            return model.session(InstancePlacement(name=config.name, kind=InstanceKind.KIND_CPU)).signature
        finally:
            model.unload()
