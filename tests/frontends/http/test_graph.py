"""The graph of a model as the port answers it."""

from __future__ import annotations

import pytest

from .fakes import FakeServices
from .harness import get, running

OUTPUT0 = {"name": "OUTPUT0", "datatype": "FP32", "shape": ["N", 3, -1]}
NODE = {
    "operator": "If",
    "name": "",
    "domain": "",
    "inputs": ["INPUT0", "w"],
    "outputs": [OUTPUT0, {"name": "y", "datatype": "", "shape": None}],
    "subgraphs": ["then_branch"],
}
GRAPH = {"file": "model.onnx", "inputs": [], "outputs": [OUTPUT0], "nodes": [NODE], "node_count": 2}


@pytest.mark.parametrize(
    ("path", "status", "document"),
    [
        ("m/graph", 200, GRAPH),
        ("m/versions/1/graph", 200, GRAPH),
        ("x/graph", 400, {"error": "requested model 'x' is not available"}),
    ],
)
async def test_the_graph_of_a_model(path: str, status: int, document: object) -> None:
    async with running(FakeServices()) as server:
        answer = await (await server.connect()).ask(get(f"/v2/models/{path}"))
    assert (answer.status, answer.document) == (status, document)
