"""Chats: with a tokenizer that nobody can read, a template that never ends, and texts at the limit."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.e2e.repositories import ModelFolder

from .arena import Arena, Outcome, measured, serving
from .costs import WRITER, WRITER_CONFIG

_CHATS = 70
_ENDLESS = "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}"
_TEMPLATES = {"endless": _ENDLESS, "good": "{{ messages[0].content }}", "json": "{{ messages | tojson }}{{ tools | tojson }}"}
_SOON_S = 1.0
_PATIENCE_S = 5.0


def tokenizer_pipe(folder: Path) -> Outcome:
    """70 chats with a model whose tokenizer is a pipe; another model must still answer, and SIGTERM end the server."""
    pipe = folder / "tokenizer"
    folder.mkdir(exist_ok=True)
    os.mkfifo(pipe)

    def write(repository: Path) -> None:
        for name, parameter, value in (("bait", "tokenizer", str(pipe)), ("good", "chat_template", _TEMPLATES["good"])):
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


def endless_template(folder: Path) -> Outcome:
    """More chats than there are threads, with a template that loops for ever; when their clients are gone another model must
    answer, and SIGTERM end the server while more of them run."""
    with serving(folder, "--allow-openai=true", write=_write_templates) as arena, measured(arena) as outcome:
        _at_once([lambda: _chat(arena, "endless", timeout_s=_SOON_S)] * 8)
        outcome.lost += _chat(arena, "good") != 200
        arena.end = partial(_at_once, [lambda: _chat(arena, "endless", timeout_s=_SOON_S / 2)] * 8, wait=False)
    return outcome


def long_chat(folder: Path, *, member: str, megabytes: int, text: str = "x") -> Outcome:
    """A chat with one long text in its message or its tools, for a template that writes it as JSON."""
    content = text * (megabytes * 1_000_000 // len(text.encode()))
    chat = {"messages": [{"role": "user", "content": content if member == "messages" else "a"}]}
    body = json.dumps(chat | ({"tools": [{"a": content}]} if member == "tools" else {}), ensure_ascii=False).encode()
    with serving(folder, "--allow-openai=true", write=_write_templates) as arena, measured(arena) as outcome:
        status = _chat(arena, "json", body[:-1] + b',"model":"json","max_tokens":1}', timeout_s=60.0)
        outcome.note(f"answered {status}")
        outcome.wrong += status != 400  # so long an answer is for a stream
    return outcome


def _write_templates(repository: Path) -> None:
    for name, template in _TEMPLATES.items():
        more = f'parameters {{ key: "chat_template" value {{ string_value: "{template}" }} }}\n'
        ModelFolder(repository, name).config(WRITER_CONFIG + more).python(WRITER)


def _at_once(asks: Sequence[Callable[[], object]], *, wait: bool = True) -> None:
    threads = [threading.Thread(target=ask) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads if wait else ():
        thread.join()


def _chat(arena: Arena, model: str, body: bytes = b"", *, timeout_s: float = _PATIENCE_S) -> int:
    address = arena.server.address("OpenAI HTTPService")
    if not body:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).encode()
    try:
        with urllib.request.urlopen(f"http://{address}/v1/chat/completions", body, timeout=timeout_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
