"""The walks of the architecture page are what a server does: a load, a shutdown, a new backend; and the files of a flag."""

from __future__ import annotations

import os
import re
import shutil
import urllib.request
from typing import NamedTuple

import pytest

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.hot_path.traced import traced_server
from tests.hot_path.walks import ROOT, Calls, Walk, assert_goes, named, section, walk

EXAMPLE = ROOT / "docs/examples/backend"
ROWS = b'{"inputs":[{"name":"X","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'
BESIDE = (
    "control/offload.py",  # soon after a load the repository is listed
    "control/core/control.py",
    "control/core/index.py",
    "telemetry/host.py",  # every few seconds the machine is sampled
    "telemetry/gpus.py",
)
"""Files of what a server does at times, whatever is asked of it."""


class Recorded(NamedTuple):
    """The calls of one server's life, with callers: several loads of ONNX models, what the example's backend did, and the end."""

    loads: list[Calls]
    example: Calls
    shutdown: Calls


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("walks")
    for name in ("first", "second", "third"):
        ModelFolder(folder / "models", name).config(AFFINE_CONFIG).affine(1, 2.0)
    shutil.copytree(EXAMPLE / "models/score", folder / "models/score")
    described = folder / "site/tpy_linear-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Name: tpy-linear\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[tpy.backends]\nlinear = tpy_linear:create\n")
    search = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(described.parent), str(EXAMPLE)])
    with traced_server(
        folder / "calls.json",
        "--model-control-mode=explicit",
        repositories=[folder / "models"],
        environment={"PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"},  # the folder of the example stays as it is
        all_threads=True,
    ) as traced:

        def post(path: str, body: bytes = b"") -> None:
            urllib.request.urlopen(f"http://{traced.server.http}/v2/{path}", body, timeout=30).close()

        def load(name: str) -> None:
            post(f"repository/models/{name}/load")

        def use_example() -> None:
            load("score")
            post("models/score/infer", ROWS)

        load("first")  # which imports the backend
        loads = [traced.record(lambda name=name: load(name)) for name in ("second", "third")]
        example = traced.record(use_example)
        shutdown = traced.record_shutdown()
    return Recorded(loads, of_example(example + shutdown), without_example(shutdown))


def of_example(calls: Calls) -> Calls:
    """Calls of the example's functions from files of ours."""
    return [call for call in calls if in_example(call[0]) and not in_example(call[3]) and call[1] != "<module>"]


def without_example(calls: Calls) -> Calls:
    return [call for call in calls if not in_example(call[0])]


def in_example(file: str) -> bool:
    return (ROOT / file).is_relative_to(EXAMPLE)


def test_a_load(recorded: Recorded) -> None:
    assert_goes(walk("A load"), recorded.loads)


def test_a_shutdown(recorded: Recorded) -> None:
    assert_goes(walk("A shutdown"), [recorded.shutdown], by_chance=BESIDE)


def test_a_new_backend_is_called_as_the_page_says(recorded: Recorded) -> None:
    rows = re.findall(r"\| `([\w.]+)` \| `([\w/]+\.py)` \|$", section("A new backend"), re.MULTILINE)
    assert rows == [(function, named(caller)) for _, function, _, caller in recorded.example]


def test_the_files_that_know_a_flag() -> None:
    known = re.compile(r"model[-_]load[-_]retry[-_]count|load_retries")
    product = (file for part in ("src", "control", "data") for file in (ROOT / part).rglob("*.py"))
    found = {named(str(file.relative_to(ROOT))) for file in product if known.search(file.read_text(encoding="utf-8"))}
    assert found == {name for step in walk("A new flag").steps for name in step}
    generated = ("docs/reference/command-line.md", "tests/golden/flags.txt")
    assert all(known.search((ROOT / name).read_text(encoding="utf-8")) and name in section("A new flag") for name in generated)


@pytest.mark.parametrize("title", ["A request", "A load", "A shutdown", "A new flag"])
def test_a_name_of_a_walk_means_one_file(title: str) -> None:
    found = walk(title)
    for name in {*found.others, *(name for step in found.steps for name in step)} - {"tests/unit/test_flags.py"}:
        places = [ROOT / "control/tpy_control" / name.removeprefix("control/")] if name.startswith("control/") else []
        places += [ROOT / "src/tpy" / name, ROOT / "data/tpy_data" / name]
        places += [ROOT / "data" / name] if name.startswith("tpy_backends/") else []
        assert len([place for place in places if place.exists()]) == 1, name


CALLS: Calls = [[f"src/tpy/{name}.py", name, 1] for name in ("a", "b", "c")]


@pytest.mark.parametrize(
    "steps",
    [
        [["a.py"], ["b.py"]],
        [["a.py"], ["b.py"], ["c.py"], ["d.py"]],
        [["b.py"], ["a.py"], ["c.py"]],
    ],
    ids=["one too few", "one too many", "in another order"],
)
def test_a_wrong_walk_is_found(steps: list[list[str]]) -> None:
    assert_goes(Walk([["a.py"], ["b.py", "c.py"]], []), [CALLS])
    with pytest.raises(AssertionError, match=r"not in the walk|not passed|not in this order"):
        assert_goes(Walk(steps, []), [CALLS])
