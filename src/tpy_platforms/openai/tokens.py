"""From tokens to text, by the tokenizer of a model: for clients that send tokens to a model that takes text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tpy import limits
from tpy.errors import InvalidArgument, Unsupported
from tpy.files import read_file

_FILE = "tokenizer.json"


def texts_of(model: str, parameters: Mapping[str, str], fallback: str, tokens: Sequence[list[int]]) -> list[str]:
    """The texts of tokens, by the tokenizer in the model's parameter `tokenizer`, or else at `fallback`. Blocks. Raises
    InvalidArgument without a tokenizer, or for an unknown token, Unsupported for a tokenizer that cannot be used."""
    place = parameters.get("tokenizer") or fallback
    if not place:
        raise InvalidArgument(
            f"model '{model}' takes texts; for tokens give it the parameter 'tokenizer', or start the server with "
            "--openai-tokenizer"
        )
    path = Path(place)
    file = path / _FILE if path.is_dir() else path.with_name(_FILE)
    try:
        tokenizer = _tokenizer_at(str(file), file.stat().st_mtime_ns)
    except ImportError:
        raise Unsupported(
            f"model '{model}': tokens need the package tokenizers where the server runs: pip install tokenizers"
        ) from None
    except Exception as error:  # the package raises Exception itself
        raise Unsupported(f"model '{model}': cannot read the tokenizer {file}: {error}") from None
    size = tokenizer.get_vocab_size()
    for each in tokens:
        unknown = [token for token in each if not 0 <= token < size]
        if unknown:
            raise InvalidArgument(f"the tokenizer of model '{model}' has no token {unknown[0]}; they are 0 to {size - 1}")
    return [str(tokenizer.decode(each)) for each in tokens]


@lru_cache(limits.OPENAI_TEMPLATES_MAX)
def _tokenizer_at(file: str, _changed_ns: int) -> Any:
    """Read again when it has changed."""
    kind = import_module("tokenizers").Tokenizer
    return kind.from_str(read_file(Path(file), bytes_max=limits.OPENAI_TOKENIZER_BYTES_MAX).decode())
