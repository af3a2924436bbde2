"""The same models and the same requests: MLflow's scoring server and tpy answer alike."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from . import servers

pytestmark = pytest.mark.skipif(bool(servers.missing()), reason=servers.missing() or "all is there")

NAMES = ["a", "b", "c", "d"]
ROWS = [[0.1, -0.2, 0.3, 0.4], [1.5, 0.25, -3.0, 2.0], [-1.0, 0.0, 0.5, -0.75]]
THREES = [[1.0, 2.0, 3.5], [4.0, -5.0, 6.0]]
PHOTO = base64.b64encode(b"\x00\xff\x01").decode()
RECORD = {"name": "bü", "count": 3, "since": "2026-01-02T03:04:05", "photo": PHOTO, "weight": 1.5}
LATER = {"name": "c", "count": 4, "since": "2026-01-03T03:04:05", "photo": "", "weight": None}
LIGHT = {name: value for name, value in RECORD.items() if name != "weight"}


def split(names: list[Any] | None, rows: list[list[Any]]) -> dict[str, Any]:
    return {"dataframe_split": {"data": rows} if names is None else {"columns": names, "data": rows}}


def shuffled(rows: list[list[float]]) -> list[list[float]]:
    return [[row[at] for at in (2, 0, 3, 1)] for row in rows]


BODIES: dict[str, list[Any]] = {
    "classes": [
        split(NAMES, ROWS),
        split(["c", "a", "d", "b"], shuffled(ROWS)),
        split([*NAMES, "more"], [[*row, 7] for row in ROWS]),
        {"dataframe_records": [dict(zip(reversed(NAMES), reversed(row), strict=True)) for row in ROWS]},
        {"inputs": {name: [row[at] for row in ROWS] for at, name in enumerate(NAMES)}},
        {"instances": [dict(zip(NAMES, row, strict=True)) for row in ROWS]},
        split(NAMES, ROWS * 70),
        "c,a,d,b\n" + "".join(",".join(map(str, row)) + "\n" for row in shuffled(ROWS)),
    ],
    "forest": [{"inputs": ROWS}, {"instances": ROWS}, split(None, ROWS), {"inputs": ROWS * 50}],
    "double": [{"inputs": THREES}, {"instances": THREES}],
    "table": [
        {"dataframe_records": [RECORD, LATER]},
        {"dataframe_records": [LIGHT]},
        split(list(RECORD), [list(RECORD.values()), list(LATER.values())]),
    ],
    "scaled": [{"inputs": THREES}, {"inputs": THREES, "params": {"scale": 0.5}}, {"instances": THREES, "params": {"scale": 3}}],
    "pair": [{"inputs": {"a": [1.0, 2.0], "b": [3.0, 0.5]}}, {"instances": [{"a": 1.0, "b": 2.5}, {"a": -1.0, "b": 0.25}]}],
    "lengths": [
        split(["text"], [["a"], ["bü"]]),
        {"inputs": ["abc", "d"]},
        {"inputs": {"text": ["x", "yz"]}},
        'text\nabc\n"d,""e"\n',
    ],
}
WRONG: dict[str, list[Any]] = {
    "classes": [
        split(["a", "b"], [[1, 2]]),
        {"inputs": ROWS, "instances": ROWS},
        {"rows": ROWS},
        [1, 2],
        "no json",
        {"dataframe_split": ROWS},
        {"dataframe_records": {"a": 1}},
        split(NAMES, [["x", 1, 2, 3]]),
    ],
    "forest": [{"inputs": [[1.0, 2.0]]}],
    "table": [{"dataframe_records": [{"name": "a"}]}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mlflow") / "saved"
    servers.build(folder)
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[str]:
    with servers.tpy(folder.parent, folder) as address:
        yield address


def sent(address: str, path: str, body: Any) -> requests.Response:
    is_csv = isinstance(body, str) and body != "no json"
    content = body if isinstance(body, str) else json.dumps(body)
    kind = "text/csv" if is_csv else "application/json"
    return requests.post(f"http://{address}{path}", content.encode(), headers={"Content-Type": kind}, timeout=60)


def same(one: Any, other: Any) -> bool:
    """Returns True for equal documents; numbers may differ in the last digits, as runtimes differ."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("name", BODIES)
def test_both_answer_alike(folder: Path, ours: str, name: str) -> None:
    path = f"/models/{name}/invocations"
    differences = []
    with servers.mlflow(folder.parent, folder / name) as theirs:
        for body in BODIES[name]:
            their, our = sent(theirs, "/invocations", body), sent(ours, path, body)
            if (their.status_code, our.status_code) != (200, 200) or not same(their.json(), our.json()):
                differences.append((body, their.status_code, their.text[:2000], our.status_code, our.text[:2000]))
            assert our.headers["Content-Type"] == their.headers["Content-Type"]
        for body in WRONG.get(name, []):
            their, our = sent(theirs, "/invocations", body), sent(ours, path, body)
            if (their.status_code, our.status_code) != (400, 400) or our.json().keys() != {"error_code", "message"}:
                differences.append((body, their.status_code, their.text[:300], our.status_code, our.text))
        for probe in ("/ping", "/health"):
            their, our = (requests.get(f"http://{address}{probe}", timeout=60) for address in (theirs, ours))
            assert (our.status_code, our.text) == (their.status_code, their.text)
    assert not differences, "\n".join(map(str, differences))
