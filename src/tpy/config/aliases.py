"""Names of a model's versions, as its parameter `aliases` says: requests for MODEL@ALIAS get that version."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

from tpy.config.model_config import ModelConfig
from tpy.errors import NotFound

PARAMETER: Final = "aliases"
"""The model parameter that has them, a JSON object of versions by name."""

EXPECTED: Final = 'a JSON object of versions by name, like {"stable": 3}; names have letters, digits, "_", "-" and "."'

_SEPARATOR: Final = "@"
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=128)]
_Version = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_DECODER: Final = msgspec.json.Decoder(dict[_Name, _Version])


def aliases(config: ModelConfig) -> Mapping[str, int] | None:
    """The versions of a model by alias; None: the parameter says something else, and may be the model's own."""
    text = config.parameter(PARAMETER, "")
    return _read(text) if text else {}


def aliased(name: str, config_of: Callable[[str], ModelConfig | None]) -> tuple[str, int] | None:
    """The model and version that MODEL@ALIAS stands for; None for another name, or a model without aliases. `config_of` gives the
    configuration of a model that is served. Raises NotFound for an alias that the model does not have."""
    model, _, alias = name.rpartition(_SEPARATOR)
    config = config_of(model) if model and alias else None
    known = None if config is None else aliases(config)
    if not known:
        return None
    if alias not in known:
        raise NotFound(f"model '{model}' has no alias '{alias}', it has {', '.join(sorted(known))}")
    return model, known[alias]


@functools.lru_cache(maxsize=256)
def _read(text: str) -> Mapping[str, int] | None:
    try:
        return _DECODER.decode(text)
    except msgspec.MsgspecError:
        return None
