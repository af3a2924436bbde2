"""`tpy init`: a trained model becomes a folder that is served as it is.

Models of other frameworks are converted by a Python that has them: that of TPY_TRAINING_ENV, or of the environment that
`make first-hour` leaves behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpy_tools.commands.init.convert import run as convert
from tpy_tools.commands.init.sources import WAYS, ModelForm, Way, choose

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess, run_tpy
from .test_serve_target import MODEL_PY, ask

ROOT = Path(__file__).parents[2]
TRAINING = Path(os.environ.get("TPY_TRAINING_ENV", ROOT / ".first-hour" / "clone" / "training"))

TRAIN = """
import joblib, numpy as np, sys
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
data = load_iris()
joblib.dump(RandomForestClassifier(10, random_state=0).fit(data.data, data.target_names[data.target]), "iris.joblib")
joblib.dump(RandomForestRegressor(3, random_state=0).fit(data.data, data.target), "regression.joblib")
joblib.dump(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["good film", "bad film"], [1, 0]), "text.joblib")
joblib.dump({"no": "model"}, "nothing.joblib")
"""


def made(folder: Path, *arguments: str) -> list[str]:
    """The lines that `tpy init` prints, with the repository `folder / "models"`."""
    outcome = run_tpy("init", *arguments, "--repository", str(folder / "models"))
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.replace(str(folder), "").splitlines()


def refused(folder: Path, *arguments: str) -> str:
    outcome = run_tpy("init", *arguments, "--repository", str(folder / "models"))
    assert (outcome.code, outcome.out) == (1, "")
    assert len(outcome.err.splitlines()) == 1, outcome.err
    left = [path for path in (folder / "models").glob("*") if path.name != "there"]
    assert not left, "half a folder was left behind"
    return outcome.err


def test_an_onnx_file(repository: Path, tmp_path: Path) -> None:
    ModelFolder(repository, "affine").config(AFFINE_CONFIG).affine(1, 2)
    file = repository / "affine" / "1" / "model.onnx"
    lines = made(tmp_path, "mine", "--from", str(file))
    assert [line.split()[0] for line in lines] == [
        "/models/mine/1/model.onnx",
        "/models/mine/config.pbtxt",
        "/models/mine/request.json",
        "serve:",
        "ask:",
    ]
    assert lines[-2] == "serve:  tpy serve /models"
    with ServerProcess(str(tmp_path / "models")) as server:
        request = json.loads((tmp_path / "models" / "mine" / "request.json").read_text())
        assert ask(server, "/v2/models/mine/infer", request)[0] == 200
        words = lines[-1].split(maxsplit=4)[4].strip("'")
        assert run_tpy("infer", "--port", server.http.rpartition(":")[2], "mine", words).code == 0
    assert run_tpy("check", str(tmp_path / "models")).out == "2 models checked, 0 with errors\n"


def test_a_python_file(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL_PY.replace("FORMULA", "x"))
    assert made(tmp_path, "mine", "--from", str(file))[1].split(maxsplit=1)[1] == "inputs: X; outputs: Y"
    config = (tmp_path / "models" / "mine" / "config.pbtxt").read_text()
    assert 'input [\n  { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }\n]' in config


def test_a_python_file_that_says_nothing_of_its_tensors(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
    lines = made(tmp_path, "mine", "--from", str(file))
    assert lines[-2:] == ["next:   write the inputs and outputs into /models/mine/config.pbtxt", "serve:  tpy serve /models"]
    assert "# to be written: model.py does not say it" in (tmp_path / "models" / "mine" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("name", "file", "arguments", "told"),
    [
        ("a/b", "m.onnx", [], "'a/b' is not a valid model name"),
        ("there", "m.onnx", [], "there is there already; choose another name, or remove it"),
        (
            "mine",
            "m.onnx",
            [],
            "m.onnx: the onnxruntime backend cannot read the model: onnx runtime error 7: Load model from model.onnx failed",
        ),
        (
            "mine",
            "m.safetensors",
            [],
            "m.safetensors is weights without their network, which is not served as it is; export the network",
        ),
        ("mine", "m.onnx", ["--as", "python"], "--as python: of m.onnx can be made: onnx"),
        ("mine", "m.joblib", ["--env", "/nosuch"], "--env /nosuch: not a virtual environment: it has no bin/python3"),
        (
            "mine",
            "m.pt",
            ["--input", "X:FLOAT:3"],
            "--input X:FLOAT:3: unknown type 'FLOAT'; expected NAME:TYPE:SIZES of one row",
        ),
        ("mine", "m.pt", ["--input", "X:FP32:a"], "sizes are whole numbers, -1 for any"),
        ("mine", "m.pt", ["--input", "X"], "--input X: expected NAME:TYPE:SIZES of one row, such as X:FP32:3,224,224"),
    ],
)
def test_what_cannot_be_made_is_told(tmp_path: Path, name: str, file: str, arguments: list[str], told: str) -> None:
    (tmp_path / "models" / "there").mkdir(parents=True)
    (tmp_path / file).write_bytes(b"no model")
    assert told in refused(tmp_path, name, "--from", str(tmp_path / file), *arguments)


@pytest.mark.parametrize(
    ("file", "package"),
    [("m.joblib", "joblib"), ("m.pt", "torch"), ("m.keras", "keras"), ("m.xgb", "xgboost"), ("m.lgb", "lightgbm")],
)
def test_packages_that_are_missing_are_named(tmp_path: Path, file: str, package: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    (tmp_path / file).write_bytes(b"\x80no pickle")
    form = ["--as", "onnx"] if file in ("m.xgb", "m.lgb") else []
    told = refused(tmp_path, "mine", "--from", str(tmp_path / file), "--env", str(tmp_path / "bare"), *form)
    assert f"this needs {package}: {tmp_path}/bare/bin/python3 -m pip install {package}" in told


def test_a_folder_that_is_no_saved_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "a folder without saved_model.pb; expected a model file, or a SavedModel" in refused(
        tmp_path, "mine", "--from", str(tmp_path / "empty")
    )


def test_files_of_other_frameworks_are_copied(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "saved_model.pb").write_bytes(b"x")
    expected = {saved: "model.savedmodel", Path("net.xml"): "model.xml", Path("net.tflite"): "model.tflite"}
    assert {source: choose(source, None)[1] for source in expected} == {
        source: Way("", filename) for source, filename in expected.items()
    }


def test_every_way_has_its_action() -> None:
    actions = {way.action for ways in WAYS.values() for way in ways.values()}
    for action in actions - {""}:
        document = {"action": action, "source": "/nosuch/file", "target": "/nosuch/target", "inputs": [], "network": ""}
        assert set(convert(json.dumps(document))) & {"error", "missing"}, action


FRAME = """
import numpy as np

class Encoder:
    categories_ = [np.array(["f", "m"], dtype=object)]

class Columns:
    feature_names_in_ = np.array(["age", "sex"], dtype=object)
    transformers_ = [("numbers", "passthrough", ["age"]), ("texts", Encoder(), ["sex"])]

class Pipeline:
    feature_names_in_ = Columns.feature_names_in_
    n_features_in_ = 2

    @property
    def steps(self):
        return [("columns", Columns())]

    def predict(self, frame):
        assert set(frame["sex"]) <= {"f", "m"}, frame
        return np.array([age + (sex == "m") for age, sex in zip(frame["age"], frame["sex"])])
"""


def test_a_pipeline_that_takes_the_columns_of_a_data_frame(tmp_path: Path) -> None:
    """Each column is an input, and the test request has texts that the model knows. Classes of the same attributes stand in for
    scikit-learn's, and a dictionary for the data frame."""
    (tmp_path / "frame.py").write_text(FRAME)
    (tmp_path / "pandas.py").write_text(
        "class DataFrame(dict):\n    def __len__(self):\n        return len(next(iter(self.values())))\n"
    )
    pickle = "import frame, pickle; pickle.dump(frame.Pipeline(), open('frame.pkl', 'wb'))"
    subprocess.run([sys.executable, "-c", pickle], cwd=tmp_path, check=True)
    (tmp_path / "joblib.py").write_text("import pickle\ndef load(path): return pickle.load(open(path, 'rb'))")
    given = ("--from", str(tmp_path / "frame.pkl"), "--as", "python")
    assert "expected sex:TYPE:1" in refused(tmp_path, "wide", *given, "--input", "age:INT64:1", "--input", "sex:BYTES:2")
    assert made(tmp_path, "mine", *given)[-1] == "ask:    tpy infer mine 'age=[1.0]' 'sex=f'"
    columns = ("--input", "age:INT64:1", "--input", "sex:BYTES:1")
    assert made(tmp_path, "said", *given, *columns)[-1] == "ask:    tpy infer said 'age=[1]' 'sex=f'"
    copied = {path.name for path in (tmp_path / "models" / "mine" / "1").iterdir()}
    assert copied == {"model.py", "frame.pkl", "frame.py", "pandas.py", "joblib.py"}, "with the modules that it needs"
    with ServerProcess(str(tmp_path / "models")) as server:
        request = json.loads((tmp_path / "models" / "mine" / "request.json").read_text())
        assert ask(server, "/v2/models/mine/infer", request)[0] == 200
        for name in ("mine", "said"):
            assert json.loads(ask(server, f"/v2/models/{name}/generate", {"age": 20, "sex": "m"})[1])["prediction"] == 21


CLIPPED = """
import numpy as np

class Clipped:
    def predict(self, rows):
        return np.clip(np.asarray(rows), 0, 10).sum(axis=1)
"""


def test_what_a_row_has_is_said_where_a_pickle_does_not(tmp_path: Path) -> None:
    """A transformer of one's own, first in a pipeline, does not know how many numbers it takes."""
    (tmp_path / "clipped.py").write_text(CLIPPED)
    pickle = "import clipped, pickle; pickle.dump(clipped.Clipped(), open('clipped.pkl', 'wb'))"
    subprocess.run([sys.executable, "-c", pickle], cwd=tmp_path, check=True)
    (tmp_path / "joblib.py").write_text("import pickle\ndef load(path): return pickle.load(open(path, 'rb'))")
    given = ("mine", "--from", str(tmp_path / "clipped.pkl"), "--as", "python")
    assert "where it takes numbers, say how many: --input X:FP32:4" in refused(tmp_path, *given)
    assert "expected A:BYTES:1" in refused(tmp_path, *given, "--input", "A:BYTES:2")
    assert made(tmp_path, *given, "--input", "A:FP64:3")[-1] == "ask:    tpy infer mine 'A=[1.0,1.0,1.0]'"
    with ServerProcess(str(tmp_path / "models")) as server:
        assert json.loads(ask(server, "/v2/models/mine/generate", {"A": [-1, 2.5, 40]})[1])["prediction"] == 12.5


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("m.onnx", "the file describes its inputs"),
        ("m.ubj", "the file describes its inputs"),
        ("m.py", "write them into its config.pbtxt"),
    ],
)
def test_inputs_are_not_taken_in_vain(tmp_path: Path, file: str, why: str) -> None:
    (tmp_path / file).write_bytes(b"")
    assert why in refused(tmp_path, "mine", "--from", str(tmp_path / file), "--input", "X:FP32:4")


def test_modules_of_the_author_are_found_where_the_command_runs(tmp_path: Path) -> None:
    """Those of a package, too; a class of the script itself cannot be found, and it is said why."""
    work = tmp_path / "work"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "__init__.py").write_text("")
    (work / "mine" / "net.py").write_text(
        "import numpy as np\nclass Double:\n    n_features_in_ = 2\n"
        "    def predict(self, rows): return 2 * np.asarray(rows).sum(axis=1)\n"
    )
    pickle = "import pickle; from mine.net import Double; pickle.dump(Double(), open('../model.pkl', 'wb'))"
    subprocess.run([sys.executable, "-c", pickle], cwd=work, check=True)
    command = [sys.executable, "-m", "tpy", "init", "mine", "--from", str(tmp_path / "model.pkl"), "--as", "python"]
    subprocess.run([*command, "--repository", str(tmp_path / "models")], cwd=work, check=True, capture_output=True)
    assert (tmp_path / "models" / "mine" / "1" / "mine" / "net.py").exists()
    here = "import pickle\nclass Mine: pass\npickle.dump(Mine(), open('here.pkl', 'wb'))"
    subprocess.run([sys.executable, "-c", here], cwd=tmp_path, check=True)
    told = run_tpy(
        "init", "other", "--from", str(tmp_path / "here.pkl"), "--as", "python", "--repository", str(tmp_path / "more")
    )
    assert "one of its classes is defined in the script that made it" in told.err
    assert "move it into a module" in told.err


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (["MLmodel", "model.pkl"], "a model of MLflow; tpy import {folder}"),
        (["config.json", "model.safetensors"], "a model of Hugging Face; tpy import {folder}"),
        (["config.json", "onnx/model.onnx"], "a model of Hugging Face; tpy import {folder}"),
    ],
)
def test_folders_of_other_tools_lead_to_a_command(tmp_path: Path, files: list[str], advice: str) -> None:
    folder = tmp_path / "given"
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")
    told = refused(tmp_path, "mine", "--from", str(folder))
    assert told == f"tpy: error: --from {folder}: {advice.format(folder=folder)}\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models of scikit-learn."""
    if not (TRAINING / "bin" / "python").exists():
        pytest.skip(f"no {TRAINING}: make first-hour makes it, with scikit-learn and skl2onnx")
    folder = tmp_path_factory.mktemp("trained")
    subprocess.run([TRAINING / "bin" / "python", "-c", TRAIN], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("form", [ModelForm.ONNX, ModelForm.PYTHON])
@pytest.mark.parametrize("model", ["iris", "regression"])
def test_scikit_learn(trained: Path, tmp_path: Path, model: str, form: ModelForm) -> None:
    made(tmp_path, model, "--from", str(trained / f"{model}.joblib"), "--env", str(TRAINING), "--as", form.value)
    with ServerProcess(str(tmp_path / "models")) as server:
        status, text = ask(server, f"/v2/models/{model}/generate", {"X": [5.1, 3.5, 1.4, 0.2]})
        assert status == 200, text
        document = json.loads(text)
        if model == "iris":
            assert document["label"] == "setosa"
            assert np.allclose(document["probabilities"], [1, 0, 0], atol=1e-5)
        else:
            label = document.get("prediction", document.get("variable"))
            assert abs(label) < 0.1
        rows = {"name": "X", "datatype": "FP32", "shape": [40, 4], "data": [1.0] * 160}
        assert ask(server, f"/v2/models/{model}/infer", {"inputs": [rows]})[0] == 200, "batches are larger than 4"


DATA_FRAME = """
import joblib, pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
rows = pd.DataFrame({"age": [22.0, 38, 26, 35, 54, 2], "sex": ["m", "f", "f", "f", "m", "m"]})
columns = ColumnTransformer([("numbers", StandardScaler(), ["age"]), ("texts", OneHotEncoder(), ["sex"])])
joblib.dump(make_pipeline(columns, LogisticRegression()).fit(rows, [0, 1, 1, 1, 0, 0]), "frame.joblib")
"""


@pytest.mark.parametrize("form", [ModelForm.ONNX, ModelForm.PYTHON])
def test_scikit_learn_on_data_frames(trained: Path, tmp_path: Path, form: ModelForm) -> None:
    python = TRAINING / "bin" / "python"
    if subprocess.run([python, "-c", "import pandas"], check=False, capture_output=True).returncode:
        pytest.skip(f"no pandas in {TRAINING}")
    subprocess.run([python, "-c", DATA_FRAME], cwd=trained, check=True)
    made(tmp_path, "frame", "--from", str(trained / "frame.joblib"), "--env", str(TRAINING), "--as", form.value)
    with ServerProcess(str(tmp_path / "models")) as server:
        for sex, label in (("m", 0), ("f", 1)):
            document = json.loads(ask(server, "/v2/models/frame/generate", {"age": 30, "sex": sex})[1])
            assert document["label"] == label, document


def test_texts_and_what_is_no_model(trained: Path, tmp_path: Path) -> None:
    assert "which has no predict" in refused(
        tmp_path, "no", "--from", str(trained / "nothing.joblib"), "--env", str(TRAINING), "--as", "python"
    )
    made(tmp_path, "text", "--from", str(trained / "text.joblib"), "--env", str(TRAINING), "--as", "python")
    with ServerProcess(str(tmp_path / "models")) as server:
        assert json.loads(ask(server, "/v2/models/text/generate", {"TEXT": "a good film"})[1])["label"] == 1


def test_a_file_in_the_place_of_the_repository(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    (tmp_path / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests):\n        return []\n")
    outcome = run_tpy("init", "m", "--from", str(tmp_path / "model.py"), "--repository", str(tmp_path / "models"))
    assert (outcome.code, outcome.err) == (1, f"tpy: error: {tmp_path / 'models'}: File exists\n")
