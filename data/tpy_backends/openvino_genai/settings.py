"""The scheduler's settings of a model: its parameters, and defaults from the memory that there is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.errors import InvalidArgument, Unavailable
from tpy.units import GIB, KIB, MIB
from tpy_backends.openvino_genai.model_folder import LanguageModelFacts
from tpy_backends.parameter_values import parse_boolean, parse_integer

BLOCK_TOKENS: Final = 32
"""Tokens in a block of the KV cache, on CPUs."""

_CACHE_SHARE: Final = 0.25
"""Of the available memory, for the KV cache: the weights, their repacked copies and other models need the rest."""

_CACHE_BYTES_MAX: Final = 8 * GIB
_SEQUENCES: Final = 64
_BATCHED_TOKENS: Final = 512
_CONTEXT_UNKNOWN: Final = 4096
_BYTES_PER_NUMBER: Final = 1.25
"""In the KV cache: a byte, and a scale and offset for each group (measured with SmolLM2: 1.19)."""

_BYTES_PER_TOKEN_UNKNOWN: Final = 512 * KIB
"""Of a model whose files do not say its size: that of 8 billion parameters without grouped heads."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler of an engine, by the names of OpenVINO GenAI's SchedulerConfig and of vLLM. `max_model_len` is the longest
    that a prompt and its answer may be together."""

    num_kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    dynamic_split_fuse: bool = True

    @property
    def tokens(self) -> int:
        """The room of the KV cache."""
        return self.num_kv_blocks * BLOCK_TOKENS

    def parameters(self) -> Mapping[str, ModelParameter]:
        """As parameters of a model."""
        return {name: ModelParameter(string_value=str(value).lower()) for name, value in msgspec.structs.asdict(self).items()}


def settings_of(config: ModelConfig, facts: LanguageModelFacts, available_bytes: int) -> EngineSettings:
    """Raises InvalidArgument for a parameter that is wrong, Unavailable where memory is too short for one block."""
    sequences = _count(config, "max_num_seqs", _SEQUENCES)
    token_bytes = int(2 * facts.layers * facts.kv_width * _BYTES_PER_NUMBER) or _BYTES_PER_TOKEN_UNKNOWN
    block_bytes = token_bytes * BLOCK_TOKENS
    longest = facts.context or _CONTEXT_UNKNOWN
    blocks = _count(config, "num_kv_blocks", 0)
    size = config.parameter("cache_size")
    if not blocks:
        wanted = _bytes(config.name, size) if size else min(_CACHE_BYTES_MAX, int(available_bytes * _CACHE_SHARE))
        blocks = wanted // block_bytes
        if not size:
            blocks = min(blocks, -(-sequences * longest // BLOCK_TOKENS))
    if blocks < 1 or blocks * block_bytes > available_bytes:
        needed = max(1, blocks)
        raise Unavailable(
            f"model '{config.name}': a KV cache of {needed} blocks needs about {needed * block_bytes // MIB} MiB, and "
            f"{available_bytes // MIB} MiB are available; the parameter cache_size bounds it"
        )
    room = blocks * BLOCK_TOKENS
    return EngineSettings(
        num_kv_blocks=blocks,
        max_num_seqs=sequences,
        max_num_batched_tokens=_count(config, "max_num_batched_tokens", _BATCHED_TOKENS),
        max_model_len=min(_count(config, "max_model_len", min(longest, room)), room),
        enable_prefix_caching=_flag(config, "enable_prefix_caching"),
        dynamic_split_fuse=_flag(config, "dynamic_split_fuse"),
    )


def available_memory() -> int:
    """Bytes that this process may still take: of the machine, and of its control group."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    available = int(found[1]) * KIB if found else GIB
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return max(0, min(available, limit - int((group / "memory.current").read_text())))
    except (OSError, ValueError):  # no limit, or none that is seen from here
        return available


def _count(config: ModelConfig, name: str, default: int) -> int:
    text = config.parameter(name)
    if not text:
        return default
    count = parse_integer(text, bits=32)
    if count < 1:
        raise InvalidArgument(f"parameter '{name}' of model '{config.name}' must be a positive number, got {count}")
    return count


def _flag(config: ModelConfig, name: str) -> bool:
    text = config.parameter(name)
    return parse_boolean(text) if text else True


def _bytes(model: str, text: str) -> int:
    """`cache_size`: GiB, as OpenVINO GenAI has it, but fractions as well."""
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 1_000_000:
        raise InvalidArgument(f"parameter 'cache_size' of model '{model}' must be a number of GiB, got '{text}'")
    return int(size * GIB)
