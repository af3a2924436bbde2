"""Probabilities of tokens, from what models write to what clients get."""

from __future__ import annotations

import json

import pytest

from tpy.errors import Internal
from tpy_platforms.openai.logprobs import chat_document, completion_document, read_logprobs

WRITTEN = [
    {
        "7": {"logprob": -2.5, "rank": 3, "decoded_token": " Zür"},
        "8": {"logprob": -0.1, "rank": 1, "decoded_token": "\ud800"},
        "9": {"logprob": float("-inf"), "rank": 2, "decoded_token": None},
    },
    {"1": {"logprob": -1, "rank": 1, "decoded_token": "ich"}},
]


def test_chats() -> None:
    found = read_logprobs("m", [json.dumps(WRITTEN[:1]).encode(), b"null", json.dumps(WRITTEN[1:]).encode()], 2)
    content = chat_document(found)["content"]
    assert [(each["token"], each["logprob"], bytes(each["bytes"])) for each in content] == [
        (" Zür", -2.5, " Zür".encode()),
        ("ich", -1.0, b"ich"),
    ]
    assert [(each["token"], each["logprob"]) for each in content[0]["top_logprobs"]] == [("?", -0.1), (" Zür", -2.5)]


def test_completions() -> None:
    found = completion_document(read_logprobs("m", [json.dumps(WRITTEN).encode()], 1), 10)
    assert found == {
        "tokens": [" Zür", "ich"],
        "token_logprobs": [-2.5, -1.0],
        "top_logprobs": [{"?": -0.1, " Zür": -2.5}, {"ich": -1.0}],
        "text_offset": [10, 14],
    }
    lowest = read_logprobs("m", [json.dumps(WRITTEN).encode()], 3)[0].top[-1]
    assert (lowest.token, lowest.logprob) == ("", -9999.0)


@pytest.mark.parametrize(
    "text", [b"no JSON", b"[{}]", b"[1]", b'[{"1": {"logprob": "x", "decoded_token": ""}}]', b'[{"1": {}}]', b"[" * 9999]
)
def test_what_is_something_else(text: bytes) -> None:
    with pytest.raises(Internal, match="model 'm' sent logprobs that are not JSON"):
        read_logprobs("m", [text], 1)
