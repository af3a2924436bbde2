"""The probabilities of tokens: as models write them, and as clients get them.

A model writes JSON, as vLLM's backend does: for each token of the text an object of candidates by token, the token itself first:
`[{"42": {"logprob": -0.1, "rank": 1, "decoded_token": " a"}, ...}, ...]`, or null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tpy.errors import Internal

_LOWEST: Final = -9999.0
"""In place of minus infinity, which JSON does not have: OpenAI's and vLLM's number."""

Json = dict[str, Any]


class TokenCandidate(msgspec.Struct, frozen=True):
    """A token that could stand at a place, and the logarithm of its probability."""

    token: str
    logprob: float

    def document(self) -> Json:
        """As chats have it."""
        return {"token": self.token, "logprob": self.logprob, "bytes": list(self.token.encode(errors="replace"))}


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A token of the text, and the likeliest candidates for its place, the likeliest first."""

    chosen: TokenCandidate
    top: tuple[TokenCandidate, ...]


def read_logprobs(model: str, texts: Sequence[bytes], top: int) -> list[TokenLogprobs]:
    """The tokens of what a model wrote, with `top` candidates for each token. Raises Internal for something else."""
    found = []
    try:
        for text in texts:
            for each in json.loads(text) or ():
                candidates = [_candidate(it) for it in each.values()]
                likeliest = sorted(candidates, key=lambda candidate: -candidate.logprob)[:top]
                found.append(TokenLogprobs(candidates[0], tuple(likeliest)))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise Internal(f"model '{model}' sent logprobs that are not JSON as vLLM's backend writes it") from None
    return found


def _candidate(written: Json) -> TokenCandidate:
    token, logprob = written["decoded_token"] or "", float(written["logprob"])
    return TokenCandidate(token.encode(errors="replace").decode(), logprob if logprob > _LOWEST else _LOWEST)


def chat_document(tokens: Sequence[TokenLogprobs]) -> Json:
    """The member `logprobs` of a choice of a chat."""
    content = [{**each.chosen.document(), "top_logprobs": [other.document() for other in each.top]} for each in tokens]
    return {"content": content, "refusal": None}


def completion_document(tokens: Sequence[TokenLogprobs], offset: int) -> Json:
    """The member `logprobs` of a choice of a completion, whose first token begins at `offset` of the text."""
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each.chosen.token)
    return {
        "text_offset": offsets,
        "token_logprobs": [each.chosen.logprob for each in tokens],
        "tokens": [each.chosen.token for each in tokens],
        "top_logprobs": [{other.token: other.logprob for other in (*each.top, each.chosen)} for each in tokens],
    }
