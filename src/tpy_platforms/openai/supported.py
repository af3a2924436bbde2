"""The settings that a model takes: a list in its configuration, or else what its inputs and outputs can carry.

The list is the parameter `supported_parameters`: names of `docs/reference/sampling-parameters.md` with commas between them. A
backend whose engine cannot do all of them writes it when it completes the configuration. Without the list a model with the input
`sampling_parameters` takes whatever comes, as vLLM's backend does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tpy.echo import echo
from tpy.errors import Unsupported
from tpy.messages import ModelDescription
from tpy_platforms.openai import models
from tpy_platforms.openai.models import Generation

PARAMETER: Final = "supported_parameters"

_WITHOUT_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "top_p": (1,),
    "logit_bias": ({},),
    "stop": ([],),
}
"""Values with which a setting changes nothing: clients send them all the time, and no model has to take them."""

_MEMBERS: Final[Mapping[str, str]] = {
    "structured_outputs": "response_format' and a forced 'tool_choice",
    "logprobs": "logprobs",
    "prompt_token_ids": "prompt",
    "cumulative_logprob": "best_of",
}
"""The members of a request by which clients ask for these."""

_NEED_SETTINGS: Final = frozenset(("structured_outputs", "logprobs"))
"""Settings that mean something only to a model that reads it: as a parameter of the request it would be passed over."""


_OWN: Final = frozenset(("skip_special_tokens", "add_special_tokens"))
"""Settings that this frontend gives by itself: only to models that are known to take them."""

_VLLM: Final = "vllm"
"""The backend whose settings these are."""


def settings_for(description: ModelDescription, parameters: Mapping[str, str], asked: Generation) -> dict[str, Any]:
    """The settings of a request; neutral ones that the model does not take are left out. Raises Unsupported, with its name, for
    what the model does not support."""
    known = description.input_by_name
    taken = _listed(parameters)
    found = {}
    for name, value in asked.settings.items():
        has_place = models.SETTINGS in known or name in known
        if name in _OWN and not (has_place and (description.platform == _VLLM if taken is None else name in taken)):
            continue
        if taken is not None and name not in taken:
            if any(value == each for each in _WITHOUT_EFFECT.get(name, ())):
                continue
            raise _refusal(description, name, f"it takes {', '.join(sorted(taken))}")
        if name in _NEED_SETTINGS and not has_place:
            raise _refusal(description, name, f"it has no input '{models.SETTINGS}'")
        found[name] = value
    for output, is_wanted in (("logprobs", asked.logprobs), ("cumulative_logprob", asked.cumulative_logprob)):
        if is_wanted and output not in description.output_by_name:
            raise _refusal(description, output, f"it has no output '{output}'")
    return found


def takes_tokens(description: ModelDescription, parameters: Mapping[str, str], *, has_tokenizer: bool) -> bool:
    """Returns True for a model that gets prompts as tokens; of one that says nothing about it, with a tokenizer here, as text:
    Triton's own vLLM backend takes no tokens."""
    taken = _listed(parameters)
    if models.SETTINGS not in description.input_by_name:
        return False
    return description.platform == _VLLM or not has_tokenizer if taken is None else "prompt_token_ids" in taken


def _listed(parameters: Mapping[str, str]) -> frozenset[str] | None:
    text = parameters.get(PARAMETER)
    return None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())


def _refusal(description: ModelDescription, name: str, reason: str) -> Unsupported:
    member = _MEMBERS.get(name, echo(name))
    return Unsupported(f"'{member}': model '{description.name}' does not support '{echo(name)}': {reason}")


ADAPTERS: Final = "lora_adapters"
"""The parameter of a model's configuration that has the names of its LoRA adapters, with commas between them."""


def adapters_of(parameters: Mapping[str, str]) -> list[str]:
    """The names of a model's LoRA adapters."""
    return [name.strip() for name in parameters.get(ADAPTERS, "").split(",") if name.strip()]
