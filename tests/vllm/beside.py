"""Compare servers with OpenAI's API and the same model: the same chats, 1 and 8 at a time, in turns. Prints for each server
tokens/s and the time to the first token (medians of the turns), and how many answers are those of the first server.

Use: python -m tests.vllm.beside tpy=127.0.0.1:9000 vllm=127.0.0.1:8001

The model is called `chat`. vLLM's own server, with the arguments of the model.json that tpy serves:

    .vllm/bin/python -m vllm.entrypoints.openai.api_server --model .vllm/models/smollm2 --served-model-name chat --port 8001 ...
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

TURNS = 3
CHATS_AT = {1: 4, 8: 24}
"""The number of chats in a turn, by how many there are at a time."""


class Said(NamedTuple):
    """One answer."""

    first_s: float
    tokens: int
    text: str


def ask(address: str, number: int) -> Said:
    body: dict[str, Any] = {
        "model": "chat",
        "messages": [{"role": "user", "content": f"Tell me story number {number} about a town by the sea."}],
        "max_tokens": 64,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s, tokens, text = 0.0, 0, ""
    connection = http.client.HTTPConnection(address)
    began_s = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line.removeprefix(b"data: "))
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                first_s = first_s or time.monotonic() - began_s
                text += piece
    connection.close()
    return Said(first_s, tokens, text)


def turn(address: str, at_a_time: int) -> tuple[float, float, list[str]]:
    """Tokens/s, the median time to the first token in ms, and the texts."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(at_a_time) as threads:
        said = list(threads.map(lambda number: ask(address, number), range(CHATS_AT[at_a_time])))
    rate = sum(each.tokens for each in said) / (time.monotonic() - began_s)
    return rate, statistics.median(each.first_s for each in said) * 1000, [each.text for each in said]


def main() -> None:
    servers = dict(each.split("=", 1) for each in sys.argv[1:])
    for address in servers.values():
        turn(address, 1)  # the first requests of a server are slow
    for at_a_time in CHATS_AT:
        turns: dict[str, list[tuple[float, float, list[str]]]] = {name: [] for name in servers}
        for number in range(TURNS):
            for name in list(servers) if number % 2 == 0 else reversed(servers):
                turns[name].append(turn(servers[name], at_a_time))
        expected = turns[next(iter(servers))][0][2]
        for name, made in turns.items():
            rate, first_ms = (statistics.median(each[place] for each in made) for place in (0, 1))
            equal = sum(text == other for text, other in zip(expected, made[0][2], strict=True))
            figures = f"{rate:7.1f} tokens/s, first token {first_ms:5.0f} ms, {equal} of {len(expected)} equal"
            print(f"{name:8} {at_a_time:3} at a time: {figures}")


if __name__ == "__main__":
    main()
