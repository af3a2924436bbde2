"""KServe v1: rows become tensors of a v2 request, its outputs rows again."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from tpy.messages import DataType, ModelDescription, TensorDescription

from .fakes import FakeServices
from .harness import get, post, running

ROWS = [[1.5, 2.0], [3.0, -4.0]]


def described(*inputs: tuple[str, DataType, tuple[int, ...]]) -> ModelDescription:
    """A model whose answers are its inputs."""
    tensors = tuple(TensorDescription(name=name, datatype=datatype, shape=shape) for name, datatype, shape in inputs)
    by_name = {tensor.name: tensor for tensor in tensors}
    return ModelDescription(
        name="given",
        version=1,
        platform="x",
        max_batch_size=8,
        decoupled=False,
        inputs=tensors,
        outputs=tensors,
        input_by_name=by_name,
        output_by_name=by_name,
    )


MATRIX = described(("X", DataType.FP32, (-1, 2)))
PAIR = described(("A", DataType.INT32, (-1, 1)), ("S", DataType.BYTES, (-1, 1)))
UNBATCHED = described(("X", DataType.FP32, (2,)))
CUBES = described(("X", DataType.FP32, (-1, 2, 2)))


async def ask(path: str, body: object = None, model: ModelDescription = MATRIX) -> tuple[int, Any, list[Any]]:
    """Status and document of the answer, and the arrays that the model was given."""
    services = FakeServices()
    services.inference.models["given"] = model
    async with running(services) as server:
        client = await server.connect()
        answer = await client.ask(get(path) if body is None else post(path, json.dumps(body)))
        given = [tensor.array for each in services.inference.submitted for tensor in each.request.inputs]
    return answer.status, answer.document, given


def nested(depth: int) -> list[object]:
    """A list in a list in a list."""
    found: list[object] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("model", "body", "shapes", "predictions"),
    [
        pytest.param(MATRIX, {"instances": ROWS}, [(2, 2)], ROWS, id="rows of the only input"),
        pytest.param(MATRIX, {"instances": [{"X": row} for row in ROWS]}, [(2, 2)], ROWS, id="objects with its name"),
        pytest.param(MATRIX, {"inputs": ROWS}, [(2, 2)], ROWS, id="a column without a name"),
        pytest.param(MATRIX, {"inputs": {"X": ROWS}}, [(2, 2)], ROWS, id="a column with its name"),
        pytest.param(UNBATCHED, {"instances": [[1.0, 2.0]]}, [(2,)], [1.0, 2.0], id="one row, no batches"),
        pytest.param(
            CUBES, {"instances": [[[1, 2], [3, 4]]]}, [(1, 2, 2)], [[[1.0, 2.0], [3.0, 4.0]]], id="rows with dimensions"
        ),
        pytest.param(
            PAIR,
            {"instances": [{"A": 1, "S": "a"}, {"A": 2, "S": {"b64": base64.b64encode(b"b").decode()}}]},
            [(2, 1), (2, 1)],
            [{"A": [1], "S": ["a"]}, {"A": [2], "S": ["b"]}],
            id="scalars and base64",
        ),
    ],
)
async def test_rows(model: ModelDescription, body: object, shapes: list[tuple[int, ...]], predictions: object) -> None:
    status, document, given = await ask("/v1/models/given:predict", body, model)
    assert (status, document) == (200, {"predictions": predictions})
    assert [array.shape for array in given] == shapes


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("count", [2, 20_000])
async def test_a_missing_value_is_nan(missing: float | None, count: int) -> None:
    rows = [[1.5, missing], *[[3.0, -4.0]] * (count - 1)]
    status, document, given = await ask("/v1/models/given:predict", {"instances": rows})
    assert status == 200
    assert np.isnan(given[0]).sum() == 1
    assert np.isnan(document["predictions"][0][1]), "an answer has the literal, as those of v2"
    assert document["predictions"][1:] == rows[1:]


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        pytest.param(MATRIX, [], "a body is", id="no object"),
        pytest.param(MATRIX, {}, "a body is", id="no rows"),
        pytest.param(MATRIX, {"instances": []}, "a body is", id="not one row"),
        pytest.param(MATRIX, {"instances": ROWS, "inputs": ROWS}, "a body is", id="both forms"),
        pytest.param(MATRIX, {"instances": [{"Z": [1, 2]}]}, "unexpected input 'Z', the model has X", id="unknown name"),
        pytest.param(MATRIX, {"instances": [[1, 2], {"X": [1, 2]}]}, "same members", id="mixed rows"),
        pytest.param(MATRIX, {"instances": [[1, 2], [3]]}, "shape does not match", id="ragged"),
        pytest.param(MATRIX, {"instances": ["a"]}, "data", id="wrong type"),
        pytest.param(
            PAIR, {"instances": [1, 2]}, "the model has 2 inputs, so a row is an object with the members A, S", id="which?"
        ),
        pytest.param(PAIR, {"inputs": {"A": [1], "S": [{"b64": "?"}]}}, "input 'S': b64", id="not base64"),
        pytest.param(MATRIX, {"instances": nested(300)}, "the rows are nested too deeply", id="deep"),
        pytest.param(PAIR, {"inputs": {"S": nested(900), "A": [1]}}, "the rows are nested too deeply", id="deeper"),
        pytest.param(MATRIX, {"instances": [" " * 5_000_000]}, "/v2/models/NAME/infer takes more", id="large"),
    ],
)
async def test_what_is_wrong_is_said(model: ModelDescription, body: object, words: str) -> None:
    status, document, given = await ask("/v1/models/given:predict", body, model)
    assert status == 400
    assert words in document["error"]
    assert not given


async def test_who_is_ready() -> None:
    assert await ask("/v1/models") == (200, {"models": ["m"]}, [])
    assert await ask("/v1/models/m") == (200, {"name": "m", "ready": True}, [])
    status, document, _ = await ask("/v1/models/unknown")
    assert (status, document) == (404, {"error": "Model with name unknown does not exist."})
    status, _, _ = await ask("/v1/models/unknown:predict", {"instances": [1]})
    assert status == 404
