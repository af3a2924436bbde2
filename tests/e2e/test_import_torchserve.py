"""Archives of TorchServe, imported and served: the handler runs unchanged, asked by TorchServe's protocol and by ours."""

from __future__ import annotations

import io
import json
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import HTTPError

import pytest

from .server import ServerProcess, run_tpy
from .test_serve_target import ask

CLASS = """
import json
import logging
import os

from ts.context import Context
from ts.utils.util import PredictionException, load_label_mapping, map_class_to_label

logger = logging.getLogger(__name__)


class Handler:
    def initialize(self, context: Context):
        properties = context.system_properties
        assert os.getcwd() == properties["model_dir"]
        self.mapping = load_label_mapping("index_to_name.json")
        self.scale = context.model_yaml_config["scale"]
        self.manifest = context.manifest
        self.about = [context.model_name, properties["batch_size"], properties["gpu_id"], properties["server_name"]]
        self.calls = context.metrics.add_metric_to_cache("HandlerCalls", "count", ["Kind"])

    def preprocess(self, data):
        return [row.get("data") or row.get("body") for row in data]

    def handle(self, data, context):
        rows = self.preprocess(data)
        self.calls.add_or_update(len(rows), ["good"])
        context.metrics.add_time("Lasts", 2.5, 0, "ms")
        logger.info("handles %d", len(rows))
        return [self.answer(at, row, data[at], context) for at, row in enumerate(rows)]

    def answer(self, at, row, given, context):
        if row == b"fail":
            raise KeyError("no such thing")
        if row == b"refuse":
            raise PredictionException("not today", 429)
        if row == b"memory":
            raise MemoryError
        if row == b"set":
            return {1, 2}
        if row == b"teapot":
            context.set_response_status(418, "teapot", at)
            context.set_response_content_type(at, "text/x-tea")
            context.set_response_header(at, "X-Tea", "green")
            context.set_response_header(at, "X-Two", "a\\r\\nX-Three: b")
            return b"short and stout"
        if row == "about":
            return json.dumps([*self.about, self.manifest["model"]["modelVersion"]])
        if isinstance(row, list):
            total = sum(row) * self.scale
            return map_class_to_label([[total]], self.mapping, [[0]])[0]
        return {
            "kinds": {name: type(value).__name__ for name, value in given.items()},
            "size": len(row),
            "header": context.get_request_header(at, "X-Mine"),
            "key": context.get_request_header(at, "X-Key"),
            "type": context.get_request_header(at, "data") or context.get_request_header(at, "content-type"),
        }
"""

FUNCTION = """
calls = []


def run(data, context):
    if data is None:
        calls.append("initialized")
        return None
    return [f"{calls[0]}: {len(row.get('body'))}" for row in data]
"""

TRUNCATED = """
def handle(data, context):
    return [] if data else None
"""


WORKFLOW = """
from ts.utils.util import PredictionException


def before(data, context):
    if data is None:
        return None
    [row] = data
    body = row.get("data") or row.get("body")
    if body == b"refuse":
        raise PredictionException("not this", 422)
    return [body + b"!!"]


def after(data, context):
    if data is None:
        return None
    return [{"said": bytes(row["body"]).decode()} for row in data]
"""

SPECIFICATION = """
models:
  batch-size: 4
  max-batch-delay: 1
  counts:
    url: function.tar.gz
    retry-attempts: 2
dag:
  before: [counts]
  counts: [after]
"""


def workflow(path: Path, name: str, handler: str, specification: str) -> None:
    """As torch-workflow-archiver makes it."""
    said = {"workflowName": name, "specFile": "workflow.yaml", "handler": "workflow_handler.py"}
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("workflow_handler.py", handler)
        packed.writestr("workflow.yaml", specification)
        packed.writestr("WAR-INF/MANIFEST.json", json.dumps({"workflow": said, "archiverVersion": "0.2.15"}))


def archive(
    path: Path,
    name: str,
    text: str,
    *,
    version: str = "1.0",
    config: str = "",
    files: Mapping[str, str | bytes] | None = None,
    **more: str,
) -> None:
    """As torch-model-archiver makes it: a zip, or a tar with all in a folder of the model's name."""
    file = "handler.py:run" if "def run" in text else "handler.py"
    model = {"modelName": name, "handler": file, "modelVersion": version, **more}
    contents: dict[str, str | bytes] = {"handler.py": text, **(files or {})}
    if config:
        model["configFile"] = "model-config.yaml"
        contents["model-config.yaml"] = config
    contents["MAR-INF/MANIFEST.json"] = json.dumps({"runtime": "python", "model": model, "archiverVersion": "0.12.0"})
    if path.suffix == ".mar":
        with zipfile.ZipFile(path, "w") as packed:
            for each, content in contents.items():
                packed.writestr(each, content)
        return
    with tarfile.open(path, "w:gz") as tar:
        for each, content in contents.items():
            member = tarfile.TarInfo(f"{name}/{each}")
            encoded = content.encode() if isinstance(content, str) else content
            member.size = len(encoded)
            tar.addfile(member, io.BytesIO(encoded))


def write_store(home: Path) -> None:
    """A model store: two versions of a class, a function, a handler with too few answers, and a workflow."""
    labels = {"index_to_name.json": '{"0": ["n0", "zero"]}'}
    archive(home / "classy.mar", "classy", CLASS, config="batchSize: 8\nmaxBatchDelay: 1\nscale: 10\n", files=labels)
    archive(
        home / "classy2.mar", "classy", CLASS, version="2.1", config="batchSize: 8\nmaxBatchDelay: 1\nscale: 20\n", files=labels
    )
    archive(home / "function.tar.gz", "function", FUNCTION, version="1.3")
    archive(home / "short.mar", "short", TRUNCATED)
    workflow(home / "tour.war", "tour", WORKFLOW, SPECIFICATION)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("torchserve")
    write_store(home)
    (home / "config.properties").write_text("inference_address=http://0.0.0.0:8080\ndefault_workers_per_model=1\n")
    models = home / "models"
    without = run_tpy("import", str(home), "--to", str(models))
    assert (without.code, "0 models imported, 5 not" in without.out) == (1, True)
    assert list(models.iterdir()) == []
    dry = run_tpy("import", str(home), "--to", str(models), "--dry-run", "--trust")
    assert (dry.code, list(models.iterdir())) == (0, [])
    assert "inference_address  --allow-torchserve and --torchserve-port of tpy serve" in dry.out
    assert run_tpy("import", str(home), "--to", str(models), "--trust").code == 0
    assert run_tpy("check", "--deep", str(models)).out == "7 models checked, 0 with errors\n"
    flags = (
        "--allow-torchserve=true",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-restricted-api=model-repository:x-key=secret",
    )
    with ServerProcess(*flags, repositories=[models]) as running:
        yield running
        assert not list(models.rglob("__pycache__"))


def call(
    server: ServerProcess, path: str, body: bytes | None = None, *, method: str | None = None, **headers: str
) -> tuple[int, bytes, Mapping[str, str]]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"http://{server.address('TorchServe HTTPService')}{path}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/octet-stream", **fields}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers
    except HTTPError as error:
        return error.code, error.read(), error.headers


def manage(server: ServerProcess, method: str, path: str, body: bytes | None = None) -> tuple[int, object]:
    status, text, _ = call(server, path, body, method=method, x_key="secret", Content_Type="application/json")
    return status, json.loads(text)


def test_bodies_of_all_kinds(server: ServerProcess) -> None:
    status, text, headers = call(server, "/predictions/classy", b"[1, 2, 3]", Content_Type="application/json")
    assert (status, headers["Content-Type"], text) == (200, "application/json", b'{\n  "zero": 120\n}')
    status, text, headers = call(server, "/predictions/classy/1.0", b"[1, 2, 3]", Content_Type="application/json; charset=utf-8")
    assert json.loads(text) == {"zero": 60}
    status, text, headers = call(server, "/predictions/classy", b"abc", method="PUT", X_Mine="yes", X_Key="secret")
    assert json.loads(text) == {
        "kinds": {"body": "bytearray"},
        "size": 3,
        "header": "yes",
        "key": None,
        "type": "application/octet-stream",
    }
    assert json.loads(call(server, "/predictions/classy", b"about", Content_Type="text/plain")[1]) == [
        "classy",
        8,
        None,
        "MMS",
        "2.1",
    ]
    assert json.loads(call(server, "/predictions/classy", b"{broken", Content_Type="application/json")[1])["size"] == 7
    assert call(server, "/predictions/function/1.3", b"four")[:2] == (200, b"initialized: 4")


def test_forms(server: ServerProcess) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    file = b'; filename="a.json"\r\nContent-Type: application/json'
    body = part % (b"data", file, b"[1, 2]") + part % (b"more", b"", b"\r\n--bytes") + b"--b--\r\n"
    status, text, _ = call(server, "/predictions/classy", body, Content_Type="multipart/form-data; boundary=b")
    assert (status, json.loads(text)) == (200, {"zero": 60})
    status, text, _ = call(server, "/predictions/classy", b"data=a%20b&more=", Content_Type="application/x-www-form-urlencoded")
    assert json.loads(text)["kinds"] == {"data": "bytearray", "more": "bytearray"}
    assert json.loads(text)["size"] == 3
    for kind, why in (("multipart/form-data", "without a boundary"), ("multipart/form-data; boundary=x", "without an end")):
        status, text, _ = call(server, "/predictions/classy", body, Content_Type=kind)
        assert (status, why in json.loads(text)["message"]) == (400, True)


def test_answers_with_a_status_and_failures(server: ServerProcess) -> None:
    status, text, headers = call(server, "/predictions/classy", b"teapot")
    assert (status, text, headers["Content-Type"], headers["X-Tea"]) == (418, b"short and stout", "text/x-tea", "green")
    assert "X-Two" not in headers
    assert "X-Three" not in headers
    for body, code, kind, message in (
        (b"fail", 503, "InternalServerException", "Prediction failed"),
        (b"refuse", 429, "InternalServerException", "not today"),
        (b"memory", 507, "InternalServerException", "Out of resources"),
        (b"set", 503, "InternalServerException", "Unsupported model output data type."),
    ):
        status, text, _ = call(server, "/predictions/classy", body)
        assert (status, json.loads(text)) == (code, {"code": code, "type": kind, "message": message})
    status, text, _ = call(server, "/predictions/short", b"1")
    assert (status, json.loads(text)["message"]) == (503, "number of batch response mismatched")
    assert "KeyError: 'no such thing'" in server.log


def test_workflows(server: ServerProcess) -> None:
    for path in ("/wfpredict/tour", "/predictions/tour"):
        status, text, headers = call(server, path, b"four")
        assert (status, json.loads(text), headers["Content-Type"]) == (200, {"said": "initialized: 6"}, "application/json")
    status, text, _ = call(server, "/wfpredict/tour", b"refuse")
    assert (status, json.loads(text)["message"]) == (500, "in ensemble 'tour', not this")
    assert call(server, "/wfpredict/none", b"")[0] == 404


def test_what_is_not_there(server: ServerProcess) -> None:
    for path, kind, message in (
        ("/predictions/none", "ModelNotFoundException", "Model not found: none"),
        ("/predictions/none/1.0", "ModelNotFoundException", "Model not found: none"),
        ("/predictions/classy/7.0", "ModelVersionNotFoundException", "Model version: 7.0 does not exist for model: classy"),
        ("/nothing", "ResourceNotFoundException", "Requested resource is not found, please refer to API document."),
    ):
        status, text, _ = call(server, path, b"")
        assert (status, json.loads(text)) == (404, {"code": 404, "type": kind, "message": message})
    status, text, _ = call(server, "/predictions/classy", method="DELETE")
    assert (status, json.loads(text)["type"]) == (405, "MethodNotAllowedException")


def test_rows_over_the_other_ports(server: ServerProcess) -> None:
    """Several requests of TorchServe in one of v2; what a handler fails with is an error there."""
    body = {"name": "body", "datatype": "BYTES", "shape": [2, 1], "data": ["[1]", "[2]"]}
    kinds = {"name": "headers", "datatype": "BYTES", "shape": [2, 1], "data": ['{"content-type": "application/json"}'] * 2}
    status, text = ask(server, "/v2/models/classy/infer", {"inputs": [body, kinds]})
    assert status == 200, text
    outputs = {each["name"]: each["data"] for each in json.loads(text)["outputs"]}
    assert [json.loads(each) for each in outputs["response"]] == [{"zero": 20}, {"zero": 40}]
    assert outputs["status"] == [200, 200]
    assert outputs["response_headers"] == ['{"content-type": "application/json"}'] * 2
    status, text = ask(server, "/v2/models/classy/infer", {"inputs": [{**body, "data": ["fail", "abc"]}]})
    assert (status, json.loads(text)["error"]) == (503, "Prediction failed")
    status, text = ask(server, "/v2/models/classy/infer", {"inputs": [body, {**kinds, "data": ["[]", "{}"]}]})
    assert (status, "'headers': expected a JSON object" in text) == (400, True)


def test_metrics_of_handlers(server: ServerProcess) -> None:
    call(server, "/predictions/classy", b"abc")
    with urllib.request.urlopen(f"http://{server.address('Metrics Service')}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    assert 'HandlerCalls{Kind="good"}' in page
    assert 'Lasts{Level="Model",ModelName="classy"} 2.5' in page
    assert 'PredictionTime{Level="Model",ModelName="classy"}' in page
    assert "handles 1" in server.log


def test_management(server: ServerProcess) -> None:
    assert call(server, "/ping")[:2] == (200, b'{\n  "status": "Healthy"\n}\n')
    assert call(server, "/models")[0] == 403
    assert manage(server, "GET", "/models?limit=2") == (
        200,
        {"nextPageToken": "2", "models": [{"modelName": name, "modelUrl": name} for name in ("classy", "function")]},
    )
    assert manage(server, "GET", "/models?limit=1&next_page_token=2")[1] == {
        "nextPageToken": "3",
        "models": [{"modelName": "short", "modelUrl": "short"}],
    }
    assert [each["modelName"] for each in manage(server, "GET", "/models?next_page_token=5")[1]["models"]] == [  # type: ignore[index]
        "tour__before",
        "tour__counts",
    ]
    _, found = manage(server, "GET", "/models/classy/all")
    assert isinstance(found, list)
    assert [(each["modelVersion"], each["batchSize"], each["maxBatchDelay"]) for each in found] == [("1.0", 8, 1), ("2.1", 8, 1)]
    assert manage(server, "GET", "/models/none")[0] == 404
    assert manage(server, "PUT", "/models/function?min_worker=2&synchronous=true") == (
        200,
        {"status": "Workers scaled to 2 for model: function"},
    )
    [described] = manage(server, "GET", "/models/function")[1]  # type: ignore[misc]
    assert (described["minWorkers"], len(described["workers"]), described["modelVersion"]) == (2, 2, "1.3")
    assert call(server, "/predictions/function", b"1")[0] == 200
    assert manage(server, "DELETE", "/models/function/1.3") == (200, {"status": 'Model "function" unregistered'})
    assert call(server, "/predictions/function", b"1")[0] == 404
    settings = {"url": "function.mar", "batch_size": 4, "max_batch_delay": 7, "response_timeout": 9, "initial_workers": 1}
    assert manage(server, "POST", "/models", json.dumps({**settings, "synchronous": True}).encode()) == (
        200,
        {"status": 'Model "function" Version: 1.3 registered with 1 initial workers'},
    )
    [described] = manage(server, "GET", "/models/function")[1]  # type: ignore[misc]
    assert [described[name] for name in ("batchSize", "maxBatchDelay", "responseTimeout", "minWorkers")] == [4, 7, 9, 1]


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/models", 400, "Parameter url is required."),
        ("POST", "/models?url=https://x.org/a.mar", 501, "archives are not fetched"),
        ("POST", "/models?url=none.mar", 404, "Model not found: none"),
        ("POST", "/models?url=none.mar&batch_size=2", 404, "Model not found: none"),
        ("POST", "/models?url=short.mar", 400, "Model short is already registered"),
        ("POST", "/models?url=short.mar&model_name=other", 501, "model_name: a model has the name of its folder"),
        ("POST", "/models?url=short.mar&handler=x", 501, "handler: it is that of the archive"),
        ("POST", "/models?url=none.mar&batch_size=x", 400, "batch_size: expected a number"),
        ("PUT", "/models/none?min_worker=1", 404, "Model not found: none"),
        ("PUT", "/models/short?min_worker=0", 501, "unregister it instead"),
        ("PUT", "/models/short?min_worker=3&max_worker=2", 400, "max_worker cannot be less than min_worker."),
        ("PUT", "/models/classy/1.0?min_worker=2", 501, "versions are loaded and unloaded together"),
        ("PUT", "/models/classy/1.0/set-default", 501, "requests without a version go to the newest one"),
        ("DELETE", "/models/classy/1.0", 501, "versions are loaded and unloaded together"),
        ("DELETE", "/models/none", 404, "Model not found: none"),
    ],
)
def test_refusals_of_management(server: ServerProcess, method: str, path: str, status: int, text: str) -> None:
    code, found = manage(server, method, path)
    assert isinstance(found, dict)
    assert (code, found["code"], text in found["message"]) == (status, status, True), found
