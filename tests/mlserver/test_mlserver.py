"""The same folders and the same requests: MLServer itself and tpy answer alike."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from . import servers

pytestmark = pytest.mark.skipif(bool(servers.missing()), reason=servers.missing() or "all is there")


class Both(NamedTuple):
    """The addresses of both servers."""

    theirs: str
    ours: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    home = tmp_path_factory.mktemp("mlserver")
    repository = home / "repository"
    servers.build(repository)
    with servers.mlserver(home, repository) as theirs, servers.tpy(home, repository) as ours:
        yield Both(theirs, ours)


def tensor(name: str, datatype: str, data: list[Any], *shape: int, content_type: str = "") -> dict[str, Any]:
    about = {"name": name, "datatype": datatype, "shape": list(shape) or [len(data), 1], "data": data}
    return {**about, "parameters": {"content_type": content_type}} if content_type else about


def asked(*inputs: dict[str, Any], outputs: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    named = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return {"id": "7", "inputs": list(inputs), **named, **more}


FOUR = tensor("predict", "FP32", [0.1, -0.2, 0.3, 0.4, 1.5, 0.25, -3.0, 2.0], 2, 4)
NESTED = tensor("predict", "FP32", [[0.1, -0.2, 0.3, 0.4]], 1, 4)
LENGTH, WIDTH = (tensor(name, "FP64", [0.5, -1.25, 2.0]) for name in ("length", "width"))
A, B = (tensor(name, "FP32", [1, 2, 3, 0.5, 0.25, 8], 2, 3) for name in "ab")
CONTENT = base64.b64encode(b"\x00\xff\x01").decode()
FRAME = (
    tensor("price", "FP64", [1.5, 2.0]),
    tensor("count", "INT64", [3, 4]),
    tensor("name", "BYTES", ["pear", "b\u00fc"], content_type="str"),
)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "scikit-learn": ("classes", asked(FOUR, outputs=("predict",))),
    "probabilities": ("classes", asked(FOUR, outputs=("predict_proba",))),
    "nested data": ("classes", asked(NESTED, outputs=("predict", "predict_proba"))),
    "columns": ("columns", asked(LENGTH, WIDTH)),
    "columns by content type": ("columns", asked(LENGTH, WIDTH, parameters={"content_type": "pd"})),
    "XGBoost": ("boosted", asked(FOUR, outputs=("predict",))),
    "XGBoost without outputs": ("boosted", asked(FOUR)),
    "probabilities of XGBoost": ("boosted", asked(FOUR, outputs=("predict_proba",))),
    "LightGBM": ("grown", asked(FOUR)),
    "arguments": ("numbers", asked(A, B)),
    "arguments in batches": ("batched", asked(A, B)),
    "a version": ("numbers/versions/1", asked(A, B)),
    "a refusal of the model": ("numbers", asked({**A, "data": [2000] * 6}, B)),
    "a failure of the model": ("numbers", asked({**A, "data": [-2000] * 6}, B)),
    "a refusal of a batch": ("batched", asked({**A, "data": [2000] * 6}, B)),
    "a data frame": ("frames", asked(*FRAME)),
    "a data frame by content type": ("frames", asked(*FRAME, parameters={"content_type": "pd"})),
    "arguments and a data frame": ("arguments", asked(tensor("weights", "FP64", [2.0, 0.5], 2), LENGTH, WIDTH)),
    "texts, bytes and times": (
        "texts",
        asked(
            tensor("text", "BYTES", ["a b", "\u00e4"], content_type="str"),
            tensor("content", "BYTES", [CONTENT]),
            tensor("day", "BYTES", ["2026-12-31T23:00:00"], content_type="datetime"),
        ),
    ),
    "bytes that are not in base64": (
        "texts",
        asked(
            tensor("text", "BYTES", ["x"]),
            tensor("content", "BYTES", ["*not*"]),
            tensor("day", "BYTES", ["2026-01-01T00:00:00+01:00"], content_type="datetime"),
        ),
    ),
    "a time that is none": (
        "texts",
        asked(
            tensor("text", "BYTES", ["x"]),
            tensor("content", "BYTES", [CONTENT]),
            tensor("day", "BYTES", ["tomorrow"], content_type="datetime"),
        ),
    ),
    "no such model": ("none", asked(A)),
}
REFUSED = {
    "a version": 404,
    "a refusal of the model": 400,
    "a failure of the model": 500,
    "a refusal of a batch": 400,
    "a time that is none": 500,
    "no such model": 404,
}
OTHERWISE = {"a version", "no such model"}
"""Answered in another way: versions are numbers, whose first is 1, and texts of refusals are Triton's."""


def ask(address: str, path: str, body: dict[str, Any]) -> requests.Response:
    return requests.post(f"http://{address}/v2/models/{path}/infer", json=body, timeout=60)


def comparable(answer: requests.Response, *, expected: bool = False) -> Any:
    """The answer without content types of outputs, which Triton's protocol does not have; numbers of one that is `expected` need
    not be equal to the last digit."""
    document = answer.json()
    if not answer.ok:
        return document
    outputs = {}
    for each in document["outputs"]:
        data = pytest.approx(each["data"], rel=1e-5) if expected and each["datatype"] != "BYTES" else each["data"]
        outputs[each["name"]] = (each["datatype"], each["shape"], data)
    return document["model_name"], document["id"], outputs


@pytest.mark.parametrize("case", [each for each in CASES if each not in OTHERWISE])
def test_answers(both: Both, case: str) -> None:
    theirs, ours = (ask(each, *CASES[case]) for each in both)
    assert theirs.status_code == REFUSED.get(case, 200), theirs.text
    assert ours.status_code == theirs.status_code, (theirs.text, ours.text)
    assert comparable(ours) == comparable(theirs, expected=True)


@pytest.mark.parametrize("case", sorted(OTHERWISE))
def test_answers_that_differ(both: Both, case: str) -> None:
    theirs, ours = (ask(each, *CASES[case]) for each in both)
    assert theirs.status_code == REFUSED[case], theirs.text
    assert ours.status_code == (200 if case == "a version" else 404), ours.text


def test_requests_at_once(both: Both) -> None:
    """Whatever share a batch: each gets its own rows."""
    bodies = [asked({**A, "data": [float(at)] * 6}, B) for at in range(20)]
    with ThreadPoolExecutor(10) as pool:
        theirs, ours = (list(pool.map(ask, [server] * 20, ["batched"] * 20, bodies)) for server in both)
    assert [comparable(each) for each in ours] == [comparable(each, expected=True) for each in theirs]


def test_metadata(both: Both) -> None:
    for name in ("classes", "numbers", "texts"):
        theirs, ours = (requests.get(f"http://{each}/v2/models/{name}", timeout=60).json() for each in both)
        for side in ("inputs", "outputs"):
            assert [(each["name"], each["datatype"]) for each in ours[side]] == [
                (each["name"], each["datatype"]) for each in theirs[side]
            ]


def test_its_own_client(both: Both, tmp_path: Path) -> None:
    """`mlserver infer` joins lines of a file to requests, and takes their answers apart."""
    lines = [json.dumps({**asked({**A, "data": [float(at)] * 6}, B), "id": str(at)}) for at in range(10)]
    (tmp_path / "lines").write_text("\n".join(lines))
    found = []
    for address in both:
        command = [str(servers.ENVIRONMENT / "bin" / "mlserver"), "infer", "--url", address, "--model-name", "numbers"]
        files = ["--input-data-path", str(tmp_path / "lines"), "--output-data-path", str(tmp_path / "answers")]
        ended = subprocess.run([*command, *files, "--batch-size", "4"], capture_output=True, text=True, check=False, timeout=100)
        assert ended.returncode == 0, ended.stderr
        answers = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
        found.append({each["id"]: [(out["name"], out["shape"], out["data"]) for out in each["outputs"]] for each in answers})
    assert found[0].keys() == {str(at) for at in range(10)}
    assert found[1] == found[0]
