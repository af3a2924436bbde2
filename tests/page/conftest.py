"""A server with models of many kinds, and a Chromium that looks at it. Skipped where there is no Chromium or no Playwright."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

STREAM = """
import triton_python_backend_utils as pb_utils
import numpy as np

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().flatten()[0].decode()
            for word in text.split():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word], np.object_))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise FileNotFoundError("the weights are missing: weights.bin")
"""
STREAM_CONFIG = """
backend: "python"
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
PICTURE_CONFIG = """
backend: "identity"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3, 32, 48 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3, 32, 48 ] } ]
"""


DECLARED_CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 5, 10, 3 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 5, 10, 3 ] } ]
parameters { key: "preprocessing.INPUT0" value { string_value: "range=-1 to 1 resize=crop order=BGR" } }
"""
SOUND_CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
parameters { key: "preprocessing.INPUT0" value { string_value: "rate=8000" } }
"""
LABELS_CONFIG = """
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "animals.txt" } ]
"""
FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("division of the indivisible")
"""


def models(repository: Path) -> None:
    """Models that serve, one that streams, some that take pictures, sound or files, one that fails, one that does not load."""
    ModelFolder(repository, "affine").config(
        AFFINE_CONFIG + "version_policy { all { } }\ninstance_group [ { count: 2 } ]\ndynamic_batching { }"
    ).affine(1, 2).affine(2, 3)
    ModelFolder(repository, "words").config(STREAM_CONFIG).python(STREAM)
    (ModelFolder(repository, "picture").config(PICTURE_CONFIG).path / "1").mkdir()
    for name, config in {"declared": DECLARED_CONFIG, "sound": SOUND_CONFIG, "labels": LABELS_CONFIG}.items():
        (ModelFolder(repository, name).config(config).path / "1").mkdir()
    (repository / "labels" / "animals.txt").write_text("cat\ndog\n<b>bird</b>\n")
    ModelFolder(repository, "fails").config(STREAM_CONFIG.replace("decoupled: true", "")).python(FAILS)
    ModelFolder(repository, "broken").config(STREAM_CONFIG).python(BROKEN)
    ModelFolder(repository, "later").config(AFFINE_CONFIG).affine(1, 5)


FLAGS = (
    "--management-address=127.0.0.1:0",
    "--model-control-mode=explicit",
    "--strict-readiness=false",
    "--exit-on-error=false",
    "--load-model=affine",
    "--load-model=words",
    "--load-model=picture",
    "--load-model=broken",
    "--load-model=declared",
    "--load-model=sound",
    "--load-model=labels",
    "--load-model=fails",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    models(repository)
    folder = tmp_path_factory.mktemp("recordings")
    traces = f"--trace-config=triton,file={tmp_path_factory.mktemp('traces') / 'trace.json'}"
    with ServerProcess(*FLAGS, f"--recording-directory={folder}", traces, repositories=[repository]) as running:
        yield running


def page_of(server: ServerProcess) -> str:
    """The page's address."""
    return f"http://{server.address('Management HTTPService')}/page/"


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.skip("the tests of the page need a Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: make test-page")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Tab:
    """A tab, with what its console said. `expected` are patterns of errors that belong to the test."""

    def __init__(self, page: object) -> None:
        self.page = page
        self.problems: list[str] = []
        self.expected: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))  # type: ignore[attr-defined]
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))  # type: ignore[attr-defined]
        page.on("requestfailed", lambda request: None)  # type: ignore[attr-defined]

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{kind}: {text}")

    def check(self) -> None:
        """Nothing was said that the test does not expect; violations of the policy are among it."""
        left = [each for each in self.problems if not any(re.search(pattern, each) for pattern in self.expected)]
        assert not left, left


@pytest.fixture
def tab(chromium: object) -> Iterator[Tab]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")  # type: ignore[attr-defined]
    context.set_default_timeout(20_000)
    made = Tab(context.new_page())
    yield made
    context.close()
    made.check()
