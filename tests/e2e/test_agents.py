"""Repository agents of a running server: decryption from load to unload, with wrong keys; one that fails, crashes, hangs or
leaves half of a folder costs its load only. Nothing of them is left."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.native.compiled import agent_library
from tpy_native.building import compile_plugin

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "agents" / "decrypt"
OPENSSL_HEADER = Path("/usr/include/openssl/evp.h")
KEY, OTHER_KEY = bytes(range(32)), bytes(32)

MOODY = """
import os
import shutil
import signal
import threading

from tpy.repository_agent import AgentAction


class MoodyAgent:
    def act(self, action, model):
        if action is not AgentAction.LOAD:
            return
        mood = model.parameters["mood"]
        folder = model.acquire()
        shutil.copytree(model.directory, folder, dirs_exist_ok=True)
        file = folder / "1" / "model.onnx"
        if mood != "good":
            file.write_bytes(file.read_bytes()[:100])
        if mood == "raise":
            raise ValueError("a bad day")
        if mood == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if mood == "hang":
            threading.Event().wait()
        if mood == "empty":
            shutil.rmtree(folder / "1")
        model.use(folder)
"""


def install(site: Path, module: Path, name: str, agent: str) -> None:
    """Puts into `site` the files that pip leaves of a package with one agent."""
    site.mkdir(exist_ok=True)
    shutil.copy(module, site)
    info = site / f"{module.stem}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.stem}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[tpy.repository_agents]\n{name} = {module.stem}:{agent}\n")


class Place:
    """A server with agents in explicit mode."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "models"
        self.plain = folder / "plain"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.repository.mkdir()
        (folder / "moody.py").write_text(MOODY)
        install(folder / "site", folder / "moody.py", "moody", "MoodyAgent")
        install(folder / "site", EXAMPLE / "tpy_decrypt.py", "decrypt", "DecryptAgent")
        library = agent_library(folder / "agents") / "compiled" / "libtritonrepoagent_compiled.so"
        library.parent.mkdir()
        self.has_openssl = OPENSSL_HEADER.exists()
        if self.has_openssl:
            compile_plugin(EXAMPLE / "decrypt.c", library, "-lcrypto")
        self.environment = {
            "PYTHONPATH": os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TMPDIR": str(self.scratch),
            "MODEL_KEY": KEY.hex(),
        }
        self.flags = (
            "--model-control-mode=explicit",
            f"--repoagent-directory={library.parents[1]}",
            "--repoagent-timeout-secs=3",
        )
        self.example = module_of(EXAMPLE / "tpy_decrypt.py")

    def put(self, name: str, scale: float, agent: str, parameters: Mapping[str, str], *, key: bytes | None = None) -> None:
        """Put a model that answers INPUT * scale, encrypted if there is a key, in place of the one that is there."""
        listed = ", ".join(f'{{ key: "{name}" value: "{value}" }}' for name, value in parameters.items())
        agents = f'model_repository_agents {{ agents [ {{ name: "{agent}" parameters [ {listed} ] }} ] }}'
        shutil.rmtree(self.plain, ignore_errors=True)
        model = ModelFolder(self.plain, name).config(AFFINE_CONFIG + agents).affine(1, scale)
        shutil.rmtree(self.repository / name, ignore_errors=True)
        if key is None:
            shutil.copytree(model.path, self.repository / name)
        else:
            self.example.encrypt(model.path, self.repository / name, key)

    def left(self) -> int:
        """The number of models that agents have a folder for."""
        return len(list(self.scratch.glob("tpy-agents-*/*")))


def module_of(path: Path) -> ModuleType:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("agents"))


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[ServerProcess]:
    with ServerProcess(*place.flags, repositories=[place.repository], environment=place.environment) as process:
        yield process
        assert KEY.hex() not in process.log
    assert list(place.scratch.glob("tpy-agents-*")) == []


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http) as client:
        yield client


def scale(client: InferenceServerClient, model: str) -> float:
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    return float(client.infer(model, [tensor]).as_numpy("OUTPUT")[0, 0])


@pytest.mark.parametrize("agent", ["decrypt", "compiled"])
def test_models_are_decrypted_with_a_key_from_the_environment(place: Place, client: InferenceServerClient, agent: str) -> None:
    if agent == "compiled" and not place.has_openssl:
        pytest.skip("needs OpenSSL's headers: apt-get install libssl-dev")
    name = f"secret_{agent}"
    place.put(name, 2, agent, {}, key=KEY)
    assert (place.repository / name / "1" / "model.onnx").read_bytes() != (place.plain / name / "1" / "model.onnx").read_bytes()
    client.load_model(name)
    assert (scale(client, name), place.left()) == (2, 1)
    place.put(name, 3, agent, {}, key=KEY)
    client.load_model(name)
    assert scale(client, name) == 3
    place.put(name, 4, agent, {}, key=OTHER_KEY)
    wrong = f"'1/model.onnx' was changed, or was not encrypted with the key in MODEL_KEY .repository agent '{agent}'."
    with pytest.raises(InferenceServerException, match=wrong):
        client.load_model(name)
    place.put(name, 4, agent, {"variable": "NOBODYS_KEY"}, key=KEY)
    with pytest.raises(InferenceServerException, match="NOBODYS_KEY has to be a key of 64 hexadecimal digits"):
        client.load_model(name)
    place.put(name, 4, agent, {}, key=KEY)
    files = place.repository / name / "1"
    (files / "another.bin").write_bytes((files / "model.onnx").read_bytes())
    with pytest.raises(InferenceServerException, match=r"'1/another\.bin' was changed"):
        client.load_model(name)
    assert scale(client, name) == 3
    wait_until(lambda: place.left() == 1)
    client.unload_model(name)
    wait_until(lambda: place.left() == 0)


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("raise", "ValueError: a bad day .repository agent 'moody'."),
        ("crash", "the process of repository agent 'moody' was ended by signal 11"),
        ("hang", "repository agent 'moody' did not end within 3 s"),
        ("half", "model.onnx"),
        ("empty", "at least one version must be available under the version policy"),
    ],
)
def test_the_old_version_serves_whatever_an_agent_does(place: Place, client: InferenceServerClient, mood: str, said: str) -> None:
    place.put("moody", 2, "moody", {"mood": "good"})
    client.load_model("moody")
    place.put("moody", 3, "moody", {"mood": mood})
    with pytest.raises(InferenceServerException, match=said):
        client.load_model("moody")
    assert scale(client, "moody") == 2
    wait_until(lambda: place.left() == 1)
    place.put("moody", 4, "moody", {"mood": "good"})
    client.load_model("moody")
    assert scale(client, "moody") == 4
    client.unload_model("moody")
    wait_until(lambda: place.left() == 0)
