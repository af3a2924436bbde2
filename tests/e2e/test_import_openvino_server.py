"""A config.json of OpenVINO Model Server, imported and served by the openvino backend: models, and a pipeline as an ensemble."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .server import ServerProcess, run_tpy
from .test_serve_target import ask

openvino = pytest.importorskip("openvino")


def saved(path: Path, shape: list[int], factor: float) -> None:
    """The IR of a network: x -> y, which is x times the factor."""
    from openvino import opset13 as ops

    x = ops.parameter(shape, np.float32, name="x")
    x.output(0).get_tensor().set_names({"x"})
    y = ops.multiply(x, ops.constant([factor], np.float32))
    y.output(0).get_tensor().set_names({"y"})
    path.parent.mkdir(parents=True)
    openvino.save_model(openvino.Model([ops.result(y)], [x], "network"), path, compress_to_fp16=False)


def node(name: str, model: str, source: str, item: str) -> dict[str, Any]:
    return {
        "name": name,
        "model_name": model,
        "type": "DL model",
        "inputs": [{"x": {"node_name": source, "data_item": item}}],
        "outputs": [{"data_item": "y", "alias": "out"}],
    }


def data(server: ServerProcess, model: str, name: str, *shape: int) -> list[float]:
    values = [1.0] * (shape[0] * shape[1])
    body = {"inputs": [{"name": name, "datatype": "FP32", "shape": list(shape), "data": values}]}
    status, text = ask(server, f"/v2/models/{model}/infer", body)
    assert status == 200, text
    [output] = json.loads(text)["outputs"]
    assert output["shape"] == list(shape)
    found: list[float] = output["data"]
    return found


def test_models_and_a_pipeline(tmp_path: Path) -> None:
    saved(tmp_path / "models/open/1/network.xml", [-1, 2], 2)
    saved(tmp_path / "models/open/2/other.xml", [-1, 2], 3)
    saved(tmp_path / "models/fixed/1/model.xml", [1, 5], 5)
    settings = [
        {
            "name": "open",
            "base_path": "/opt/models/open",
            "model_version_policy": {"all": {}},
            "batch_size": "auto",
            "nireq": 2,
            "target_device": "CPU",
            "plugin_config": {"PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False},
        },
        {"name": "fixed", "base_path": "fixed", "shape": "(3, 2)", "layout": "NC"},
        {"name": "reshaped", "base_path": "fixed", "shape": {"x": "(1:4,2)"}},
    ]
    pipeline = {
        "name": "chain",
        "inputs": ["in"],
        "nodes": [node("first", "open", "request", "in"), node("second", "open", "first", "out")],
        "outputs": [{"result": {"node_name": "second", "data_item": "out"}}],
    }
    config = {"model_config_list": [{"config": each} for each in settings], "pipeline_config_list": [pipeline]}
    (tmp_path / "models" / "config.json").write_text(json.dumps(config))
    to = tmp_path / "repository"
    outcome = run_tpy("import", str(tmp_path / "models"), "--to", str(to))
    assert (outcome.code, "4 models imported, 0 not" in outcome.out) == (0, True), outcome.out
    assert run_tpy("check", "--deep", str(to)).out == "4 models checked, 0 with errors\n"
    with ServerProcess(repositories=[to]) as server:
        assert data(server, "open", "x", 2, 2) == [3.0] * 4
        assert data(server, "open/versions/1", "x", 1, 2) == [2.0] * 2
        assert data(server, "fixed", "x", 3, 2) == [5.0] * 6
        assert data(server, "reshaped", "x", 4, 2) == [5.0] * 8
        assert data(server, "chain", "in", 2, 2) == [9.0] * 4
