"""Small requests that cost much: settings for many prompts, members without end, long strings."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.e2e.repositories import ModelFolder

from .arena import Outcome, measured, serving

_PATIENCE_S = 60.0
WRITER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        return answers
"""
WRITER_CONFIG = """
backend: "python"
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""


def _write(repository: Path) -> None:
    ModelFolder(repository, "writer").config(WRITER_CONFIG).python(WRITER)


def _completion(**members: object) -> bytes:
    return json.dumps({"model": "writer", "prompt": "a", "max_tokens": 1, **members}).encode()


BODIES: dict[str, Callable[[], bytes]] = {
    "settings": lambda: _completion(prompt=["a"] * 2048, guided="x" * 1_000_000),
    "members": lambda: _completion(**{f"m{number}": 1 for number in range(2_000_000)}),
    "nested": lambda: _completion(more={"a": [[1, [2]]] * 3_000_000}),
}


def _post(url: str, body: bytes) -> int:
    """The status of an answer, 0: there was none."""
    try:
        with urllib.request.urlopen(url, body, timeout=_PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def openai(folder: Path, *, kind: str) -> Outcome:
    """A completion whose settings are much more than its prompt: refused, and nobody waits for it."""
    body = BODIES[kind]()
    with serving(folder, "--allow-openai=true", write=_write) as arena:
        address = arena.server.address("OpenAI HTTPService")
        with measured(arena) as outcome:
            status = _post(f"http://{address}/v1/completions", body)
            outcome.note(f"answered {status}")
            outcome.wrong += status != 400
    return outcome


def long_string(folder: Path, *, megabytes: int, text: str = "x", frontends: int = 0) -> Outcome:
    """One string that generate echoes."""
    body = json.dumps({"text_input": text * (megabytes * 1_000_000 // len(text.encode()))}, ensure_ascii=False).encode()
    with serving(folder, f"--frontend-processes={frontends}", write=_write) as arena, measured(arena) as outcome:
        status, answer = arena.ask("POST", "/v2/models/writer/generate", body, timeout_s=_PATIENCE_S)
        outcome.wrong += status != 200 or len(answer) < megabytes * 1_000_000
        outcome.note(f"answered {status}")
    return outcome


def sagemaker_load(folder: Path, *, megabytes: int) -> Outcome:
    """A load call of SageMaker that is much longer than names are: refused, and nobody waits for it."""
    body = b'{"model_name":"%b","url":"/opt/a"}' % (rb"\u00e9" * (megabytes * 1_000_000 // 6))
    with serving(folder, "--allow-sagemaker=true", "--model-control-mode=explicit", "--load-model=*") as arena:
        address = arena.server.address("Sagemaker HTTPService")
        with measured(arena) as outcome:
            status = _post(f"http://{address}/models", body)
            outcome.note(f"answered {status}")
            outcome.wrong += status != 400
    return outcome
