"""Models of MLflow in a repository: whatever the name, nothing outside of the model's folder is read, written or removed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.backends import onnx_models
from tpy_tools.commands.importing.core.deployment_target import API_KEY, REPOSITORY, is_trusted, parse_target
from tpy_tools.commands.importing.core.plan import Unimportable
from tpy_tools.commands.importing.deployed_models import DeployedModels

NAMES = (
    *("", ".", "..", "../outside", "../../outside", "a/b", "a/../../outside", "/tmp/outside", "\\..\\outside", "..\\outside"),
    *("a\0b", "a\nb", "a\n", " a", "a ", "~", "$HOME", "%2e%2e", "%2e%2e%2foutside", "\u2025", "\uff0e\uff0e", "a\u202eb", "-rf"),
    *(".hidden", ".tpy-import-x", "a" * 256, "a;b", "a|b", "`id`", "*", "a:b", "file:///tmp", "\ud800"),
)


def model(path: Path, sum_of: int = 1, name: str = "", *, flavours: str = "onnx: {data: model.onnx}") -> Path:
    path.mkdir()
    tensor = json.dumps([{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}])
    (path / "MLmodel").write_text(f"flavors: {{{flavours}}}\nsignature: {{inputs: '{tensor}', outputs: '{tensor}'}}\n")
    (path / "model.onnx").write_bytes(onnx_models.affine(2, sum_of))
    if name:
        (path / "registered_model_meta").write_text(json.dumps({"model_name": name}))
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "models" / "mine" / "1").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.pbtxt").write_text('backend: "python"\n')
    (tmp_path / "models" / "empty").mkdir()
    (tmp_path / "models" / "loose").write_text("a file")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.pbtxt").write_text('"MLFLOW_MODEL"')
    (tmp_path / "models" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "models" / "dangling").symlink_to(tmp_path / "nothing")
    model(tmp_path / "given")
    return tmp_path


def everything(home: Path) -> dict[str, bytes | str]:
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder"
        for path in home.rglob("*")
    }


@pytest.fixture
def untouched(home: Path) -> Iterator[None]:
    before = everything(home)
    yield
    assert everything(home) == before


def unreached() -> None:
    raise AssertionError("nothing is to be loaded")


def put(home: Path, name: str, method: str = "add", *, source: str = "given", flavour: str = "") -> None:
    models = DeployedModels(str(home / "models"))
    getattr(models, method)(name, home / source, flavour=flavour, trust=False, load=unreached)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", NAMES)
def test_cve_2026_47487(home: Path, name: str) -> None:
    """22, path traversal: the name of a deployment of MLflow. No name leaves the repository, whatever is done with it."""
    models = DeployedModels(str(home / "models"))
    for method in ("add", "replace"):
        with pytest.raises(Unimportable, match="cannot be a model's name here"):
            put(home, name, method)
    for question in (models.has, models.remove, models.require_deployed):
        with pytest.raises(Unimportable, match="cannot be a model's name here"):
            question(name)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", ["mine", "empty", "loose", "link", "dangling"])
def test_what_is_not_a_deployment_is_left_alone(home: Path, name: str) -> None:
    models = DeployedModels(str(home / "models"))
    with pytest.raises(Unimportable, match="is there already"):
        put(home, name)
    with pytest.raises(Unimportable, match=r"not a deployment|not made from a model of MLflow"):
        put(home, name, "replace")
    with pytest.raises(Unimportable, match=r"not a deployment|not made from a model of MLflow"):
        models.remove(name)


@pytest.mark.usefixtures("untouched")
def test_models_that_cannot_be_deployed_leave_nothing(home: Path) -> None:
    for source, flavour, words in (
        ("outside", "", "there is no MLmodel"),
        ("given", "spark", "no flavor 'spark'"),
        ("given", "", "nothing is to be loaded"),
    ):
        with pytest.raises((Unimportable, AssertionError), match=words):
            put(home, "new", source=source, flavour=flavour)
    with pytest.raises(Unimportable, match="is not a deployment"):
        put(home, "new", "replace")
    DeployedModels(str(home / "models")).remove("new")


def test_a_deployment_from_its_beginning_to_its_end(home: Path) -> None:
    models, loads = DeployedModels(str(home / "models")), list[bytes]()
    file = home / "models" / "new" / "1" / "model.onnx"

    def load() -> None:
        loads.append(file.read_bytes())

    called_otherwise = model(home / "other", 5, "../../outside")
    models.add("new", home / "given", flavour="onnx", trust=False, load=load)
    models.replace("new", called_otherwise, flavour="", trust=False, load=load)
    assert len(set(loads)) == 2
    assert loads[1] == (called_otherwise / "model.onnx").read_bytes()

    def fail() -> None:
        load()
        raise Unimportable("it cannot be loaded")

    with pytest.raises(Unimportable, match="it cannot be loaded"):
        models.replace("new", home / "given", flavour="", trust=False, load=fail)
    assert (loads[2], file.read_bytes()) == (loads[0], loads[1]), "the former one is there again"
    models.remove("new")
    models.remove("new")
    assert sorted(path.name for path in (home / "models").iterdir()) == ["dangling", "empty", "link", "loose", "mine"]


@pytest.mark.usefixtures("untouched")
def test_a_model_with_links_or_pickles(home: Path) -> None:
    place = model(home.parent / f"{home.name}-linked")
    (place / "secret").symlink_to(home / "outside" / "config.pbtxt")
    with pytest.raises(Unimportable, match="a link that leads out of the folder"):
        DeployedModels(str(home / "models")).add("new", place, flavour="", trust=False, load=unreached)
    (place / "secret").unlink()
    (place / "model.pkl").touch()
    (place / "MLmodel").write_text("flavors: {sklearn: {pickled_model: model.pkl}}")
    with pytest.raises(Unimportable, match=r"is a pickle.*-C trust=true deploys it all the same"):
        DeployedModels(str(home / "models")).add("new", place, flavour="", trust=False, load=unreached)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_disk_that_fails_leaves_everything(home: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    """Whichever step fails, the former deployment stays, and the error has a text."""
    models = DeployedModels(str(home / "models"))
    models.add("new", home / "given", flavour="", trust=False, load=lambda: None)
    before = everything(home)
    rename, steps = Path.rename, list[Path]()

    def fail(self: Path, target: Path) -> Path:
        steps.append(self)
        if len(steps) == fails_at:
            raise PermissionError(13, "Permission denied", str(self))
        return rename(self, target)

    def no_folder(*_args: object, **_options: object) -> str:
        raise PermissionError(13, "Permission denied", "models")

    with monkeypatch.context() as patched:
        if fails_at:
            patched.setattr(Path, "rename", fail)
        else:
            patched.setattr(tempfile, "mkdtemp", no_folder)
        with pytest.raises(Unimportable, match=r"cannot be read or written: .*Permission denied"):
            models.replace("new", home / "given", flavour="", trust=False, load=unreached)
    assert everything(home) == before
    models.remove("new")


def test_repositories() -> None:
    for said, words in (("", "add .repository=DIRECTORY"), ("/nowhere/at/all", "there is no folder")):
        with pytest.raises(Unimportable, match=f"(?i){words}"):
            DeployedModels(said)


def test_targets() -> None:
    found = parse_target("tpy:https://host:8443?repository=/a%20b&mlflow-port=5001", {API_KEY: "k"})
    assert (found.host, found.port, found.is_tls, found.repository, found.mlflow_port) == ("host", 8443, True, "/a b", 5001)
    assert found.headers == {"Authorization": "Bearer k"}
    found = parse_target("tpy", {REPOSITORY: "/models"})
    assert (found.host, found.port, found.repository, found.mlflow_port) == ("localhost", 8000, "/models", 5000)


@pytest.mark.parametrize(
    "target",
    [
        *("tpy:ftp://host:1", "tpy:http://", "tpy:/x", "tpy:http://host:99999", "tpy:http://host/path", "tpy:http://user@host"),
        *("tpy:http://host?other=1", "tpy:http://host?mlflow-port=x", "tpy:http://host?mlflow-port=70000", "tpy:http://[host"),
    ],
)
def test_targets_that_are_wrong(target: str) -> None:
    with pytest.raises(Unimportable, match="expected tpy:http://HOST:PORT"):
        parse_target(target, {})


@pytest.mark.parametrize(
    ("config", "expected"),
    [(None, False), ({}, False), ({"trust": "true"}, True), ({"trust": True}, True), ({"trust": "False"}, False)],
)
def test_trust(config: Mapping[str, object] | None, expected: bool) -> None:
    assert is_trusted(config) is expected
    for wrong in ({"trust": "yes"}, {"gpu": "1"}):
        with pytest.raises(Unimportable, match="expected trust=true"):
            is_trusted(wrong)
