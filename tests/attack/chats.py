"""Chats whose model names a tokenizer that nobody can read."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

from tests.e2e.repositories import ModelFolder

from .arena import Arena, Outcome, measured, serving
from .costs import WRITER, WRITER_CONFIG

_CHATS = 70
_PATIENCE_S = 5.0


def tokenizer_pipe(folder: Path) -> Outcome:
    """70 chats with a model whose tokenizer is a pipe; another model must still answer, and SIGTERM end the server."""
    pipe = folder / "tokenizer"
    folder.mkdir(exist_ok=True)
    os.mkfifo(pipe)

    def write(repository: Path) -> None:
        for name, parameter, value in (("bait", "tokenizer", str(pipe)), ("good", "chat_template", "{{ messages[0].content }}")):
            more = f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}\n'
            ModelFolder(repository, name).config(WRITER_CONFIG + more).python(WRITER)

    with serving(folder, "--allow-openai=true", write=write) as arena, measured(arena) as outcome:
        statuses: list[int] = []
        threads = [threading.Thread(target=lambda: statuses.append(_chat(arena, "bait"))) for _ in range(_CHATS)]
        for thread in threads:
            thread.start()
        outcome.lost += _chat(arena, "good") != 200
        for thread in threads:
            thread.join()
        outcome.lost += statuses.count(0)
        outcome.note(f"{statuses.count(0)} of {_CHATS} chats without an answer")
    return outcome


def _chat(arena: Arena, model: str) -> int:
    address = arena.server.address("OpenAI HTTPService")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).encode()
    try:
        with urllib.request.urlopen(f"http://{address}/v1/chat/completions", body, timeout=_PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
