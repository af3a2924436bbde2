"""The openvino_genai backend: language models by OpenVINO GenAI's continuous batching, on CPUs and Intel's GPUs. A model's folder
is an OpenVINO export, or a single GGUF file.

`backend` completes configurations and loads models, `settings` reads their parameters, `gguf` and `exported` what the files say,
`sampling` translates what requests ask for, `engine` steps. OpenVINO GenAI is imported by `engine` and `sampling`, when an engine
is made.
"""

from __future__ import annotations

from typing import Final

from tpy.backend import BackendSettings, Isolation
from tpy.backend.engine import EngineBackend
from tpy_data.backends.creation import Needs

__all__ = ["create"]

NEEDS: Final = Needs("OpenVINO GenAI", ("openvino-genai",), extra="genai")


class _Create:
    """The entry point. By default engines run in worker processes, which may crash, hang or run out of memory by themselves."""

    default_isolation = Isolation.PROCESS

    def __call__(self, settings: BackendSettings) -> EngineBackend:
        """Raises Unavailable when OpenVINO GenAI is not installed."""
        from tpy_backends.openvino_genai.backend import GenAiBackend

        return GenAiBackend(settings, NEEDS)


create = _Create()
