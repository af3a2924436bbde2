"""langchain-openai and litellm ask a server as they ask OpenAI's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.e2e.openai_engine import add_engine
from tests.e2e.server import ServerProcess

PYTHON = ROOT / ".openai-clients" / "bin" / "python"
CALL = ["weather", {"city": "Bern"}]


@pytest.mark.skipif(not PYTHON.exists(), reason="needs langchain-openai and litellm: make test-openai-clients")
def test_langchain_and_litellm(tmp_path: Path) -> None:
    add_engine(tmp_path, "engine", tool_call_parser="hermes")
    with ServerProcess("--allow-openai=true", "--openai-default-max-tokens=1000", repositories=[tmp_path]) as server:
        outcome = subprocess.run(
            [PYTHON, Path(__file__).with_name("clients.py"), f"http://{server.address('OpenAI HTTPService')}/v1"],
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout.splitlines()[-1])
    assert found["langchain"] == {
        "said": "Hello!",
        "usage": 8,
        "pieces": ["Hel", "lo!"],
        "usage of a stream": [8],
        "called": [CALL],
        "called in a stream": [CALL],
        "forced": [["weather", {"city": "Rome"}]],
        "structured": "Bern",
        "structured by a tool": "Bern",
        "probabilities": ["abc", "d"],
        "choices": ["abc", "abc"],
    }
    assert found["litellm"] == {
        "said": "Hello!",
        "choices": ["a", "a"],
        "pieces": ["Hel", "lo!"],
        "usage of a stream": [8],
        "called": {"city": "Bern"},
        "called in a stream": {"city": "Bern"},
        "forced": "[]",
        "structured": "{}",
        "text": "abc",
        "refused": True,
    }
