"""The files of a model: `model.json` (arguments of vLLM's engine) and `multi_lora.json` (adapters by name), as Triton's backend
has them. Reads them without vLLM."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tpy.backend import InstancePlacement
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.config.values import did_you_mean
from tpy.echo import echo
from tpy.errors import InvalidArgument, Unavailable
from tpy.files import read_file
from tpy.units import MIB

ARGUMENTS_FILE: Final = "model.json"
ADAPTERS_FILE: Final = "multi_lora.json"
_BYTES_MAX: Final = 16 * MIB

_OF_LOGS: Final = frozenset({"disable_log_requests", "enable_log_requests", "disable_log_stats"})
"""Arguments about logs. Those of requests are of vLLM's own server, and in many a model.json; nothing here logs requests."""

_REFUSED: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "data_parallel_size": ((1,), "an instance is one engine; use instance_group { count: N }"),
    "nnodes": ((1,), "an engine of this server runs on one machine"),
    "runner": (("auto", "generate", "pooling"), "models of this backend generate text or give embeddings"),
    "convert": (("auto", "none", "embed"), "models of this backend generate text or give embeddings"),
    "skip_tokenizer_init": ((False,), "prompts and answers are text"),
    "distributed_executor_backend": ((None, "mp", "uni", "ray"), "this server starts the engine itself"),
}
"""Arguments that take effect only with these values, and why."""


_TASKS: Final[Mapping[str, str]] = {"auto": "auto", "generate": "generate", "embed": "pooling", "embedding": "pooling"}
"""The runner for an argument `task`, which earlier versions of vLLM had in its place."""


_WORDS_OF_IMAGES: Final = ("vision", "visual", "image", "img")
"""Parts of the names in the config.json of a model that takes images (`vision_config`, `image_token_id`)."""

_QWEN: Final = "<|vision_start|><|image_pad|><|vision_end|>"
_PLACEHOLDERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("llava", "llava_next", "llava_onevision", "idefics3", "smolvlm", "internvl_chat", "deepseek_vl_v2"), "<image>"
    ),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), _QWEN),
    **dict.fromkeys(("phi3_v", "phi4mm"), "<|image_{number}|>"),
    **dict.fromkeys(("minicpmv", "minicpmo"), "(<image>./</image>)"),
    "gemma3": "<start_of_image>",
    "llama4": "<|image|>",
    "glm4v": "<|begin_of_image|><|image|><|end_of_image|>",
}
"""By `model_type`, what vLLM's models have as `get_placeholder_str`. For chat templates that take text only."""


class EngineArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`engine` has the arguments of vLLM's EngineArgs, `adapters` the folders of LoRA adapters by name. `logs_stats`: the engine
    says its throughput in the log from time to time."""

    engine: Mapping[str, Any]
    adapters: Mapping[str, str]
    logs_stats: bool

    @property
    def folder(self) -> Path | None:
        """The folder of the model's tokenizer, None if that has the name of a model on a hub."""
        named = self.engine.get("tokenizer") or self.engine["model"]
        path = Path(str(named))
        return path.absolute() if path.is_dir() else None

    @property
    def embeds(self) -> bool:
        """True for a model of embeddings."""
        return self.engine.get("runner") == "pooling" or self.engine.get("convert") == "embed"

    @property
    def world_size(self) -> int:
        """The number of GPUs that the engine wants."""
        return _positive(self.engine, "tensor_parallel_size") * _positive(self.engine, "pipeline_parallel_size")


def arguments_of(version_directory: Path) -> EngineArguments:
    """Raises Unavailable for a file that is missing, InvalidArgument for what is wrong in it."""
    path = version_directory / ARGUMENTS_FILE
    if not path.is_file():
        raise Unavailable(f"'{ARGUMENTS_FILE}' containing vllm engine args must be provided in '{version_directory}'")
    given = _object(path)
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidArgument(f"{path}: 'model' must be the folder of a model, or its name on a hub; got {echo(str(model))}")
    for name, (accepted, why) in _REFUSED.items():
        if name in given and given[name] not in accepted:
            raise InvalidArgument(f"{path}: '{name}': {echo(str(given[name]))} is not supported: {why}")
    arguments = {name: value for name, value in given.items() if name not in _OF_LOGS}
    if (task := arguments.pop("task", None)) is not None:
        if not isinstance(task, str) or task not in _TASKS:
            raise InvalidArgument(f"{path}: 'task': {echo(str(task))} is not supported: it may be {', '.join(_TASKS)}")
        arguments.setdefault("runner", _TASKS[task])
    enabled = str(given.get("enable_lora", False)).lower()
    if enabled not in ("true", "false"):
        raise InvalidArgument(f"{path}: 'enable_lora' must be true or false, got {echo(enabled)}")
    if "enable_lora" in given:
        arguments["enable_lora"] = enabled == "true"
    found = EngineArguments(
        engine=arguments,
        adapters=_adapters(version_directory / ADAPTERS_FILE) if enabled == "true" else {},
        logs_stats=not given.get("disable_log_stats", False),
    )
    if found.embeds and found.adapters:
        raise InvalidArgument(f"{path}: 'enable_lora' is not supported for a model of embeddings")
    return found


def require_known(arguments: EngineArguments, known: Collection[str], version: str) -> None:
    """Raise InvalidArgument, with the name, for an argument that this version of vLLM does not have."""
    for name in arguments.engine:
        if name not in known or name.startswith("_"):
            raise InvalidArgument(
                f"{ARGUMENTS_FILE}: vLLM {version} has no engine argument '{echo(name)}'{did_you_mean(name, known)}"
            )


def visible_gpus(arguments: EngineArguments, config: ModelConfig, placement: InstancePlacement) -> str:
    """The GPUs of an instance as CUDA_VISIBLE_DEVICES; "" for all. By Triton's rules: that of a KIND_GPU, those of the parameter
    GPU_DEVICE_IDS of a KIND_MODEL. Raises InvalidArgument."""
    size = arguments.world_size
    if placement.kind is InstanceKind.KIND_GPU:
        if size > 1:
            raise InvalidArgument(
                "KIND_GPU is currently for single-GPU models, please specify KIND_MODEL in the model's config.pbtxt for "
                "multi-GPU models"
            )
        return str(placement.device_id)
    text = config.parameter("GPU_DEVICE_IDS")
    if placement.kind is not InstanceKind.KIND_MODEL or not text:
        return ""
    ids = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() for each in ids) or len(set(ids)) != len(ids):
        raise InvalidArgument(f"parameter GPU_DEVICE_IDS must be different numbers of GPUs, as '0,1,2'; got {echo(text)}")
    if size > 1 and len(ids) != size:
        raise InvalidArgument(
            f"parameter GPU_DEVICE_IDS names {len(ids)} GPUs, and the engine wants {size} (tensor_parallel_size * "
            "pipeline_parallel_size)"
        )
    return ",".join(ids)


def longest_of(arguments: EngineArguments) -> int:
    """Tokens of a prompt and its answer together, as far as the files say it; 0: the engine will know."""
    given = arguments.engine.get("max_model_len")
    if type(given) is int and given > 0:
        return given
    document = _configuration(arguments) or {}
    of_text = document.get("text_config")
    found = (of_text if isinstance(of_text, dict) else document).get("max_position_embeddings")
    return found if type(found) is int and found > 0 else 0


def takes_images(arguments: EngineArguments) -> bool:
    """Returns False for a model of text alone, as far as the files say it."""
    given = arguments.engine.get("limit_mm_per_prompt")
    of_images = given.get("image") if isinstance(given, dict) else None
    count = of_images.get("count") if isinstance(of_images, dict) else of_images
    if arguments.embeds or arguments.engine.get("language_model_only") or count == 0:
        return False
    document = _configuration(arguments)
    return document is None or any(word in name for name in document for word in _WORDS_OF_IMAGES)


def placeholder_of(arguments: EngineArguments) -> str:
    """The text that stands for an image in a prompt, where the chat template does not write it; "" if it is not known."""
    kind = (_configuration(arguments) or {}).get("model_type")
    return _PLACEHOLDERS.get(kind, "") if isinstance(kind, str) else ""


def _configuration(arguments: EngineArguments) -> dict[str, Any] | None:
    """The model's config.json; None for one that is not in a folder, or cannot be read: vLLM reports what is wrong with it."""
    try:
        found = json.loads(read_file(Path(str(arguments.engine["model"])) / "config.json", bytes_max=_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _adapters(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise Unavailable(f"'enable_lora' needs '{ADAPTERS_FILE}', adapters' folders by name, in '{path.parent}'")
    found = _object(path)
    for name, folder in found.items():
        if not isinstance(folder, str) or not folder:
            raise InvalidArgument(f"{path}: the adapter '{echo(name)}' must be the path of a folder")
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_file(path, bytes_max=_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"cannot read '{path}': {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{path} must be a JSON object")
    return found


def _positive(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name, 1)
    if type(value) is not int or value < 1:
        raise InvalidArgument(f"{ARGUMENTS_FILE}: '{name}' must be a positive number, got {echo(str(value))}")
    return value
