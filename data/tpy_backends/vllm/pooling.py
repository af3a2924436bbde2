"""Settings of a request for an embedding as the arguments of vLLM's PoolingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy_data.generation.core.values import flag, whole

_DIMENSIONS_MAX: Final = 2**31 - 1


TRUNCATION: Final = "truncate_prompt_tokens"
"""A setting of the prompt, not of vLLM's PoolingParams or SamplingParams: of vLLM's own server."""


def pooling_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidArgument with the name of a setting that is wrong or not supported. `dimensions` may be in a list: Triton's
    OpenAI frontend sends them so."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        match name:
            case "dimensions":
                given = value[0] if isinstance(value, list) and len(value) == 1 else value
                made[name] = whole({name: given}, name, 0, 1, _DIMENSIONS_MAX)
            case "use_activation":
                made[name] = flag(settings, name)
            case "truncate_prompt_tokens":
                continue
            case _:
                raise InvalidArgument(f"'{echo(name)}' is not supported by backend vllm for embeddings")
    return made
