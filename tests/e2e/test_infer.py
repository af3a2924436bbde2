"""`tpy infer`: values of the command line become the inputs of a model, and what it answers is shown."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tpy.frontends.access.config import digest, key_entry

from .openai_engine import add_engine
from .repositories import AFFINE_CONFIG, ModelFolder
from .server import RunOutcome, ServerProcess, run_tpy

ECHO = """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1], "optional": True})
        config.add_input({"name": "PICTURE", "data_type": "TYPE_UINT8", "dims": [3, 4, 6], "optional": True})
        config.add_output({"name": "SEEN", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "SUM", "data_type": "TYPE_FP32", "dims": [1]})
        return config
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def answer(self, request):
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        rows = next(iter(arrays.values())).shape[0]
        seen = [f"{name} {array.shape} {array.reshape(-1)[:4].tolist()}" for name, array in sorted(arrays.items())]
        seen.append(str(request.parameters()))
        if request.parameters() == '{"nothing":"yes"}':
            return pb_utils.InferenceResponse([])
        total = sum(float(array.sum()) for array in arrays.values() if array.dtype != object)
        return pb_utils.InferenceResponse([
            pb_utils.Tensor("SEEN", np.array([[text.encode() for text in seen]] * rows, dtype=object)),
            pb_utils.Tensor("SUM", np.full((rows, 1), total, np.float32)),
        ])
"""

COUNTER = """import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "COUNT", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "AT", "data_type": "TYPE_INT32", "dims": [2]})
        config.add_output({"name": "MORE", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for at in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                outputs = [pb_utils.Tensor("AT", np.array([at, at], np.int32)), pb_utils.Tensor("MORE", np.array([7], np.int32))]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("enough")), flags=1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    repository = tmp_path_factory.mktemp("models")
    model = repository / "echo" / "1" / "model.py"
    model.parent.mkdir(parents=True)
    model.write_text(ECHO)
    add_engine(repository, "chat")
    ModelFolder(repository, "counter").python(COUNTER)
    with ServerProcess(repositories=[repository]) as running:
        yield running


def infer(server: ServerProcess, *values: str) -> RunOutcome:
    return run_tpy("infer", "--port", server.http.rpartition(":")[2], *values)


def seen(server: ServerProcess, *values: str) -> list[str]:
    """The inputs and parameters that the model saw, in the first row."""
    outcome = infer(server, "--json", "echo", *values)
    assert outcome.code == 0, outcome.err
    rows: list[list[str]] = json.loads(outcome.out)["SEEN"]
    return rows[0]


def test_a_language_model_writes_its_text(server: ServerProcess) -> None:
    sampling = '{"max_tokens": 9}'
    outcome = infer(server, "chat", "text_input=Hello, is it tea?", f"sampling_parameters={sampling}")
    assert (outcome.code, outcome.err, outcome.out) == (0, "", "Hello, is it tea?\n")
    lines = infer(server, "--json", "chat", "text_input=Hello", f"sampling_parameters={sampling}").out.splitlines()
    assert [json.loads(line)["text_output"] for line in lines] == ["Hel", "lo"], "piece by piece"


def test_a_decoupled_model_answers_until_an_error(server: ServerProcess) -> None:
    outcome = infer(server, "counter", "COUNT=2", "--output", "AT")
    assert outcome.code == 1
    assert outcome.out == '{"AT":[0,0]}\n{"AT":[1,1]}\n'
    assert "enough" in outcome.err


def test_names_and_values(server: ServerProcess) -> None:
    outcome = infer(server, "echo", "X=[5.1, 3.5, 1.4, 0.2]")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == "SUM FP32[1,1] [[10.2]]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("X=[[1, 2, 3, 4]]", "X (1, 4) [1.0, 2.0, 3.0, 4.0]"),
        ("X=[[1, 2, 3, 4], [5, 6, 7, 8]]", "X (2, 4) [1.0, 2.0, 3.0, 4.0]"),
        ("X=[1, 2, 3, 4, 5, 6, 7, 8]", "X (2, 4) [1.0, 2.0, 3.0, 4.0]"),
        ("TEXT=some words = here", "TEXT (1, 1) [b'some words = here']"),
        ('TEXT=["a", "b"]', "TEXT (2, 1) [b'a', b'b']"),
        ("TEXT=7", "TEXT (1, 1) [b'7']"),
    ],
)
def test_values_are_fitted_to_inputs(server: ServerProcess, value: str, shown: str) -> None:
    assert seen(server, value)[0] == shown


def test_parameters(server: ServerProcess) -> None:
    assert json.loads(seen(server, "X=[1,2,3,4]", "temperature=0.5")[-1]) == {"temperature": 0.5}


def test_files(server: ServerProcess, tmp_path: Path) -> None:
    text = tmp_path / "text.bin"
    text.write_bytes(b"\xff\x00plain")
    assert seen(server, f"TEXT=@{text}")[0] == r"TEXT (1, 1) [b'\xff\x00plain']"
    values = tmp_path / "values.json"
    values.write_text('{"X": [1, 2, 3, 4], "TEXT": "both"}')
    assert [line.split()[0] for line in seen(server, str(values))[:2]] == ["TEXT", "X"]
    array = tmp_path / "array.npy"
    np.save(array, np.ones((3, 4)))
    assert seen(server, f"X=@{array}")[0] == "X (3, 4) [1.0, 1.0, 1.0, 1.0]"
    picture = tmp_path / "picture.png"
    Image.new("RGB", (12, 8), (10, 20, 30)).save(picture)
    outcome = infer(server, "--json", "echo", "X=[1,2,3,4]", "TEXT=x", str(picture))
    assert outcome.code == 0, outcome.err
    assert "RGB, 6 x 4, colours first, 0 to 255" in outcome.err
    assert json.loads(outcome.out)["SEEN"][0][0] == "PICTURE (1, 3, 4, 6) [10, 10, 10, 10]"


def test_a_whole_request(server: ServerProcess, tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text('{"id": "7", "inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}')
    outcome = infer(server, "echo", str(request))
    assert (outcome.code, json.loads(outcome.out)["id"]) == (0, "7")


def test_an_answer_without_outputs_is_told(server: ServerProcess) -> None:
    assert infer(server, "echo", "X=[1,2,3,4]", "nothing=yes").out == "(no outputs)\n"


def test_one_output_of_one_version(server: ServerProcess) -> None:
    assert infer(server, "--output", "SUM", "echo/versions/1", "X=[1,2,3,4]").out == "SUM FP32[1,1] [[10.]]\n"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            ["nosuch", "X=1"],
            "HTTP 404: Request for unknown model: 'nosuch' is not found; models that are ready: chat, counter, echo",
        ),
        (["echo"], "no input was given; echo takes X FP32[?,4], TEXT BYTES[?,1], PICTURE UINT8[?,3,4,6]"),
        (["echo", "x=[1,2,3,4]"], "'x' is neither an input nor a parameter"),
        (["echo", "x=1"], "there is no input 'x'; echo takes X FP32[?,4]"),
        (["echo", "X=[1,2,3]"], "X FP32[?,4]: the value has the shape [3]; expected 4 elements or a multiple of it"),
        (["echo", "X=some"], "X FP32[?,4]: the value is not an array of numbers"),
        (["echo", "/nosuch.png"], "'/nosuch.png' is neither NAME=VALUE nor a file"),
        (["echo", "X=@/nosuch"], "X: no such file: /nosuch"),
        (["echo", "X=[1,2,3,4]", 'TEXT=["a", "b"]'], "HTTP 400"),
    ],
)
def test_what_does_not_fit_is_reported(server: ServerProcess, values: list[str], told: str) -> None:
    outcome = infer(server, *values)
    assert (outcome.code, outcome.out) == (1, "")
    assert told in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_files_that_cannot_be_read_are_reported(server: ServerProcess, tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for value, told in {
        f"X=@{tmp_path / 'objects.npy'}": "objects.npy: expected an array that numpy.save wrote, without Python objects: ",
        f"X=@{tmp_path / 'cut.npy'}": "cut.npy: expected an array that numpy.save wrote",
        f"PICTURE=@{tmp_path / 'cut.png'}": "cut.png: not a picture: ",
        "no input " * 500: "is neither NAME=VALUE nor a file",
        "more=" + os.fsdecode(b"\xff"): "parameter 'more' is not valid UTF-8",
    }.items():
        outcome = infer(server, "echo", value)
        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (1, "", 1), outcome.err
        assert told in outcome.err
    assert seen(server, "TEXT=" + os.fsdecode(b"\xff"))[0] == r"TEXT (1, 1) [b'\xff']"


def test_a_service_of_another_kind_is_reported() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"models": 3}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        outcome = run_tpy("infer", "--port", str(other.server_port), "m", "X=1")
        other.shutdown()
        thread.join()
    assert outcome.code == 1
    assert outcome.err.startswith("tpy: error: 127.0.0.1 answers, but not like a model server: ")


def test_a_key_goes_with_the_request(tmp_path: Path) -> None:
    ModelFolder(tmp_path / "models", "affine").config(AFFINE_CONFIG).affine(1, 2)
    (tmp_path / "auth.toml").write_text(key_entry("me", digest("the-key-of-mine"), ["infer", "observe"], ["*"]))
    flags = (f"--auth-config={tmp_path / 'auth.toml'}", "--auth-required=true")
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as secured:
        assert "401" in infer(secured, "affine", "INPUT=[1,2,3]").err
        outcome = infer(secured, "-H", "Authorization: Bearer the-key-of-mine", "affine", "INPUT=[1,2,3]")
        assert (outcome.code, outcome.err) == (0, "")


def test_no_server() -> None:
    outcome = run_tpy("infer", "--port", "1", "m", "X=1")
    assert outcome.code == 1
    assert "no server at 127.0.0.1:1" in outcome.err
    assert outcome.err.endswith("start one with: tpy serve DIRECTORY\n")
