"""The model.py of Triton's own vLLM backend, unchanged, as a python-based backend. TPY_VLLM_MODEL_PY names that file,
`src/model.py` of triton-inference-server/vllm_backend; without it the test is skipped."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import ServerProcess
from tests.vllm.place import ENVIRONMENT, MODEL

FILE = os.environ.get("TPY_VLLM_MODEL_PY", "")

pytestmark = [
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="needs vLLM and a model: make test-vllm"),
    pytest.mark.skipif(not FILE, reason="TPY_VLLM_MODEL_PY does not name the model.py of Triton's vLLM backend"),
    pytest.mark.time_limit(400),
]

SHIM = """
import importlib.util, sys, types
from pathlib import Path

import vllm.inputs
import vllm.v1.metrics.loggers
from vllm.v1.metrics.buckets import build_1_2_5_buckets

# Two names where that backend looks for them; vLLM has moved them since.
vllm.v1.metrics.loggers.build_1_2_5_buckets = build_1_2_5_buckets
sys.modules["vllm.inputs.data"] = types.ModuleType("vllm.inputs.data")
sys.modules["vllm.inputs.data"].TokensPrompt = vllm.inputs.TokensPrompt

FILE = Path({file!r})
sys.path.insert(0, str(FILE.parent))
spec = importlib.util.spec_from_file_location("triton_vllm_backend", FILE)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
TritonPythonModel = module.TritonPythonModel
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("nvidia")
    backend, model = folder / "backends" / "triton_vllm", folder / "models" / "chat"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(SHIM.format(file=FILE))
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'backend: "triton_vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
        f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
        'parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }\n'
    )
    arguments = {"model": str(MODEL), "enforce_eager": True, "max_model_len": 512, "kv_cache_memory_bytes": 2**28}
    (model / "1" / "model.json").write_text(json.dumps(arguments))
    with ServerProcess(f"--backend-directory={folder / 'backends'}", repositories=[folder / "models"]) as server:
        yield server


def ask(server: ServerProcess, route: str, **fields: Any) -> str:
    body = {"text_input": "The capital of France is", "sampling_parameters": '{"temperature": 0, "max_tokens": 4}', **fields}
    request = urllib.request.Request(f"http://{server.http}/v2/models/chat/{route}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as response:
        return str(response.read().decode())


def test_it_generates_streams_and_reports_its_metrics(server: ServerProcess) -> None:
    whole = json.loads(ask(server, "generate", exclude_input_in_output=True, return_num_output_tokens=True))
    assert (whole["text_output"].startswith(" Paris"), whole["num_output_tokens"]) == (True, 4)
    lines = ask(server, "generate_stream", stream=True).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert "".join(each["text_output"] for each in events) == whole["text_output"]
    assert len(events) == 4
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        assert 'vllm:generation_tokens_total{model="chat",version="1"} 8' in page.read().decode()
