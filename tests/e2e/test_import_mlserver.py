"""Models of MLServer, imported and served without MLServer: their classes run unchanged, asked by the same requests."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from .server import ServerProcess, run_tpy
from .test_serve_target import ask
from .waiting import wait_until

NUMBERS = """
from typing import List, Optional

import numpy as np
import mlserver
from mlserver import MLModel
from mlserver.codecs import decode_args
from mlserver.errors import InferenceError


class Numbers(MLModel):
    async def load(self) -> bool:
        self.offset = self.settings.parameters.extra["offset"]
        self.calls = 0
        mlserver.register("rows_of_a_batch", "how many")
        return True

    @decode_args
    async def predict(self, a: np.ndarray, b: np.ndarray, c: Optional[np.ndarray] = None) -> np.ndarray:
        mlserver.log(rows_of_a_batch=len(a))
        if a[0, 0] == -1:
            raise InferenceError("not this")
        if a[0, 0] == -2:
            raise ValueError("broken")
        return (a * b + self.offset).sum(axis=1)
"""

TEXTS = """
import json
from datetime import timedelta
from pathlib import Path

from helpers.words import shout
from mlserver import MLModel, types
from mlserver.codecs import Base64Codec, DatetimeCodec, NumpyCodec, StringCodec
from mlserver.utils import get_model_uri


class Texts(MLModel):
    async def load(self) -> bool:
        self.words = json.loads(Path(await get_model_uri(self._settings)).read_text())
        self.relative = Path("words.json").exists()
        return self.relative

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        inputs = {each.name: each for each in payload.inputs}
        texts = self.decode(inputs["texts"])
        content = self.decode(inputs["content"])
        days = self.decode(inputs["days"])
        assert inputs["texts"].datatype == "BYTES"
        assert list(inputs["texts"].data) == inputs["texts"].data.root
        parameters = payload.parameters.model_extra if payload.parameters else {}
        outputs = [
            StringCodec.encode_output("shouted", [self.words.get(text, shout(text)) for text in texts]),
            Base64Codec.encode_output("reversed", [each[::-1] for each in content]),
            DatetimeCodec.encode_output("tomorrow", [day + timedelta(days=1) for day in days]),
            StringCodec.encode_output("about", [json.dumps([payload.id, self.name, self.version, parameters])]),
        ]
        return types.InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            outputs=outputs,
            parameters=types.Parameters(content_type="str", words=len(texts)),
        )
"""

OLD = """
from mlserver import MLModel
from mlserver.codecs import NumpyRequestCodec


class Old(MLModel):
    async def predict(self, payload):
        rows = self.decode_request(payload, default_codec=NumpyRequestCodec)
        return self.encode_response(rows * int(self.version.removeprefix("v")))
"""


def tensor(name: str, datatype: str, *shape: int, content_type: str = "") -> dict[str, Any]:
    about: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(shape)}
    return {**about, "parameters": {"content_type": content_type}} if content_type else about


def write(folder: Path, files: Mapping[str, str], **settings: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "model-settings.json").write_text(json.dumps(settings))
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def write_source(source: Path) -> None:
    """Three models: arguments as arrays, in batches; texts, bytes and times; two versions."""
    write(
        source / "numbers",
        {"models.py": NUMBERS},
        implementation="models.Numbers",
        max_batch_size=4,
        max_batch_time=0.5,
        inputs=[tensor("a", "FP32", -1, 3), tensor("b", "FP32", -1, 3)],
        outputs=[tensor("output-0", "FP32", -1, 1)],
        parameters={"extra": {"offset": 1}},
    )
    write(
        source / "texts",
        {"models.py": TEXTS, "words.json": '{"a": "b"}', "helpers/__init__.py": "", "helpers/words.py": "shout = str.upper"},
        name="texts",
        implementation="models.Texts",
        inputs=[
            tensor("texts", "BYTES", -1, content_type="str"),
            tensor("content", "BYTES", -1, 1, content_type="base64"),
            tensor("days", "BYTES", -1),
        ],
        outputs=[tensor(name, "BYTES", -1, 1) for name in ("shouted", "reversed", "tomorrow", "about")],
        parameters={"uri": "./words.json", "version": "v0.1.0"},
    )
    for version in ("v9", "v10"):
        write(
            source / "old" / version,
            {"model.py": OLD},
            name="old",
            implementation="model.Old",
            inputs=[tensor("x", "INT64", -1, 2)],
            outputs=[tensor("output-1", "INT64", -1, 2)],
            parameters={"version": version},
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    assert not list(distributions(name="mlserver")), "MLServer is installed"
    home = tmp_path_factory.mktemp("mlserver")
    source = home / "source"
    write_source(source)
    models = home / "models"
    without = run_tpy("import", str(source), "--to", str(models))
    assert (without.code, "0 models imported, 3 not" in without.out) == (1, True)
    dry = run_tpy("import", str(source), "--to", str(models), "--dry-run", "--trust")
    assert (dry.code, list(models.iterdir())) == (0, [])
    assert "version v10  its number is 1: ask for versions/1" in dry.out
    assert run_tpy("import", str(source), "--to", str(models), "--trust").code == 0
    assert run_tpy("check", "--deep", str(models)).out == "3 models checked, 0 with errors\n"
    with ServerProcess(repositories=[models]) as running:
        yield running
        assert not list(models.rglob("__pycache__"))


def rows(name: str, datatype: str, *data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data), len(data[0])], "data": list(data)}


def infer(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    status, text = ask(server, f"/v2/models/{path}/infer", body)
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def test_arguments_are_arrays(server: ServerProcess) -> None:
    found = infer(
        server, "numbers", id="7", inputs=[rows("a", "FP32", [1, 2, 3], [0, 0, 0]), rows("b", "FP32", *[[2, 2, 2]] * 2)]
    )
    assert (found["id"], found["outputs"]) == (
        "7",
        [{"name": "output-0", "datatype": "FP32", "shape": [2, 1], "data": [15.0, 3.0]}],
    )


def test_requests_share_a_call(server: ServerProcess) -> None:
    """Four of them, the preferred size, within the half second that the first waits."""
    with ThreadPoolExecutor(4) as pool:
        body = [{"inputs": [rows("a", "FP32", [at, 0, 0]), rows("b", "FP32", [1, 1, 1])]} for at in range(4)]
        answers = list(pool.map(lambda each: infer(server, "numbers", **each), body))
    assert [each["outputs"][0]["data"] for each in answers] == [[3.0 + at] for at in range(4)]
    with urllib.request.urlopen(f"http://{server.address('Metrics Service')}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    assert 'rows_of_a_batch_sum{model_name="numbers",model_version=""}' in page
    _, text = ask(server, "/v2/models/numbers/stats")
    [stats] = json.loads(text)["model_stats"]
    assert stats["execution_count"] < stats["inference_count"], "no two requests shared a call"


def test_errors_of_a_model(server: ServerProcess) -> None:
    for value, code, message in (
        (-1, 400, "mlserver.errors.InferenceError: not this"),
        (-2, 500, "builtins.ValueError: broken"),
    ):
        body = {"inputs": [rows("a", "FP32", [value, 0, 0]), rows("b", "FP32", [1, 1, 1])]}
        status, text = ask(server, "/v2/models/numbers/infer", body)
        assert (status, json.loads(text)["error"]) == (code, message)
    wait_until(lambda: "predict failed (model 'numbers')" in server.log)


def test_texts_bytes_and_times(server: ServerProcess) -> None:
    content = base64.b64encode(b"\x00\xff").decode()
    found = infer(
        server,
        "texts/versions/1",
        id="mine",
        inputs=[
            {"name": "texts", "datatype": "BYTES", "shape": [2], "data": ["a", "c"]},
            {"name": "content", "datatype": "BYTES", "shape": [1, 1], "data": [content]},
            {
                "name": "days",
                "datatype": "BYTES",
                "shape": [1],
                "data": ["2026-11-30T12:00:00"],
                "parameters": {"content_type": "datetime"},
            },
        ],
        parameters={"mine": 5},
    )
    assert found["parameters"]["words"] == 2
    assert found["parameters"]["content_type"] == "str"
    outputs = {each["name"]: each["data"] for each in found["outputs"]}
    assert outputs["shouted"] == ["b", "C"]
    assert base64.b64decode(outputs["reversed"][0]) == b"\xff\x00"
    assert outputs["tomorrow"] == ["2026-12-01T12:00:00"]
    assert json.loads(outputs["about"][0]) == ["mine", "texts", "v0.1.0", {"mine": 5}]


def test_versions(server: ServerProcess) -> None:
    """MLServer compares versions as texts, so that v9 is newer than v10."""
    for path, expected in (("old", [9, 18]), ("old/versions/1", [10, 20]), ("old/versions/2", [9, 18])):
        assert infer(server, path, inputs=[rows("x", "INT64", [1, 2])])["outputs"][0]["data"] == expected
