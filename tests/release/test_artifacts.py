"""`make dist`: what it builds, and that it installs and serves on each Python that is here, for a user who can write nothing."""

from __future__ import annotations

import email
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from release.__main__ import main
from tests.e2e.repositories import ModelFolder

pytestmark = pytest.mark.time_limit(600)  # one of them waits until all is built twice, with compilers for two kinds of machines

ROOT = Path(__file__).parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
NOBODY = 65534
WRITES_NOTHING = """
import os, sys
assert os.getuid(), "root may write everywhere"
for folder in sys.argv[1:]:
    for name in (folder, *(entry.path for entry in os.scandir(folder))):
        assert not os.access(name, os.W_OK), name
    try:
        open(os.path.join(folder, "written"), "w")
    except PermissionError:
        continue
    sys.exit(folder + " can be written to")
"""
PROGRAM = """
import sys
import tpy
assert tpy.__file__.startswith(sys.argv[2]), tpy.__file__
with tpy.Server(sys.argv[1]) as server:
    print(server.model("twice").infer({"X": [[1.5]]})["Y"].tolist())
"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
"""


@pytest.fixture(scope="module")
def commit() -> str:
    """The last commit when the build begins: a developer may make another one meanwhile."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory, commit: str) -> Path:
    """The files of this commit. The command builds them twice, and fails where the bytes differ."""
    folder = tmp_path_factory.mktemp("dist")
    assert main(["--to", str(folder)]) == 0
    return folder


def wheel(dist: Path, tag: str) -> Path:
    (found,) = dist.glob(f"*{tag}.whl")
    return found


def installed(python: str) -> str | None:
    """The path of an interpreter, of the system or of pyenv."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    ours = sorted(folder.glob(f"{python.removeprefix('python')}.*/bin/{python}"))
    return str(ours[-1]) if ours else shutil.which(python)


def test_checksums_and_statement_name_the_same_files(dist: Path, commit: str) -> None:
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir() if path.suffix in (".whl", ".gz")
    }
    statement = json.loads((dist / "provenance.intoto.json").read_text())
    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == sums
    assert statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}


def test_the_sbom_has_what_the_metadata_require(dist: Path) -> None:
    for each in dist.glob("*.whl"):
        files = zipfile.ZipFile(each)
        (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        (sbom,) = [name for name in files.namelist() if name.endswith("/sboms/tpy-server.cdx.json")]
        found = json.loads(files.read(sbom))
        needed = email.message_from_bytes(files.read(metadata)).get_all("Requires-Dist", [])
        required = {one["name"] for one in found["components"] if one["scope"] == "required"}
        assert required == {Requirement(one).name for one in needed if "extra ==" not in one}
        assert {"onnxruntime", "ray"} < {one["name"] for one in found["components"] if one["scope"] == "optional"}
        (trio,) = [one for one in found["components"] if one["name"] == "trio"]
        assert trio["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
        assert {"name": "tpy:tested", "value": version("trio")} in trio["properties"]


def test_the_source_distribution_builds_the_same_wheel_without_an_index(dist: Path, commit: str, tmp_path: Path) -> None:
    (source,) = dist.glob("*.tar.gz")
    time = ["git", "show", "-s", "--format=%ct", commit]
    epoch = subprocess.run(time, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, str(source)], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": epoch.strip()})
    assert wheel(tmp_path, "-any").read_bytes() == wheel(dist, "-any").read_bytes()


def as_another_user() -> list[str]:
    """A prefix of commands. Where the tests run as root, whom no mode of a folder stops, they run as a user who owns nothing, and
    may read what is root's: interpreters and temporary folders."""
    if os.getuid():
        return []
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    prefix += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("root cannot become another user with CAP_DAC_READ_SEARCH here, by setpriv")
    return prefix


def test_the_classifiers_are_pythons_that_are_tried_and_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [
        each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert named
    assert {f"python{version}" for version in named} <= set(PYTHONS)
    allowed = SpecifierSet(project["requires-python"])
    assert [version for version in named if version not in allowed] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheels_serve_on_every_python_that_is_here(dist: Path, tmp_path: Path, python: str) -> None:
    """That of this machine's kind, with all that it needs; and the one without compiled parts, first on the path.
    conftest.py says at the end of the run which Pythons were here."""
    path = installed(python)
    if path is None:
        pytest.skip(f"{python} is not installed")
    user = as_another_user()
    home, temporary = tmp_path / "größe und raum", tmp_path / "temporary"
    environment, pure, models = home / "env", home / "pure", home / "models"
    subprocess.run([path, "-m", "venv", str(environment)], check=True)
    own = str(environment / "bin" / "python")
    pip = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
    subprocess.run([*pip, str(wheel(dist, f"-manylinux*{platform.machine()}"))], check=True)
    subprocess.run([*pip, "--no-deps", "--target", str(pure), str(wheel(dist, "-any"))], check=True)
    ModelFolder(models, "twice").config(CONFIG).python(MODEL)
    for folder in (home, *home.rglob("*")):
        if not folder.is_symlink():
            folder.chmod(folder.stat().st_mode & ~0o222)
    temporary.mkdir()
    temporary.chmod(0o777)
    variables = {"PATH": "/usr/bin:/bin", "TMPDIR": str(temporary)}  # no HOME

    def run(program: str, *arguments: Path, **more: str) -> subprocess.CompletedProcess[str]:
        command = [*user, own, "-c", program, *map(str, arguments)]
        return subprocess.run(command, cwd="/", env={**variables, **more}, capture_output=True, text=True, check=False)

    forbidden = run(WRITES_NOTHING, home, environment, pure, models / "twice")
    assert forbidden.returncode == 0, forbidden.stderr
    for served in (run(PROGRAM, models, environment), run(PROGRAM, models, pure, PYTHONPATH=str(pure))):
        assert (served.stdout, served.returncode) == ("[[3.0]]\n", 0), served.stderr
