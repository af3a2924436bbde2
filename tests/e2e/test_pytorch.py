"""PyTorch models behind a real server: one network in all its forms, a module that remembers, and what goes wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from .examples import package_file, program, python_command
from .server import ServerProcess

torch = pytest.importorskip("torch", reason="needs PyTorch: make setup-torch")

FORMS = {"traced": ("image", "OUTPUT__0"), "exported": ("image", "OUTPUT__0"), "from_class": ("image", "probabilities")}
ONNX = ("INPUT", "PROBABILITIES")
CLIENT = program("speech/client.py")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("pytorch") / "models"
    subprocess.run(python_command("pytorch/save.py", built), check=True)
    return built


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repositories=[repository]) as server:
        yield server


@pytest.fixture(scope="module")
def pictures() -> Any:
    ask = program("pytorch/ask.py")
    return np.concatenate([ask.picture(name) for name in ("coffee.png", "chelsea.png", "rocket.jpg")])


def ask(module: Any, address: str, model: str, names: tuple[str, str], images: Any) -> Any:
    """Over HTTP or gRPC, by the stock client."""
    tensor = module.InferInput(names[0], list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    with module.InferenceServerClient(address) as client:
        return client.infer(model, [tensor]).as_numpy(names[1])


def test_every_form_of_a_network_gives_the_same_over_both_protocols(server: ServerProcess, pictures: Any) -> None:
    expected = ask(tritonclient.http, server.http, "onnx", ONNX, pictures)
    assert expected.shape == (3, 1000)
    for model, names in FORMS.items():
        for module, address in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
            np.testing.assert_allclose(ask(module, address, model, names, pictures), expected, atol=2e-4, err_msg=model)


@pytest.mark.parametrize("model", FORMS)
def test_many_clients_get_their_own_answers(server: ServerProcess, pictures: Any, model: str) -> None:
    alone = [ask(tritonclient.http, server.http, model, FORMS[model], picture[None]) for picture in pictures]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda n: ask(tritonclient.http, server.http, model, FORMS[model], pictures[n % 3][None]), range(9))
        )
    for n, given in enumerate(together):
        np.testing.assert_allclose(given, alone[n % 3], atol=1e-4)


def test_a_failed_run_is_that_requests_alone(server: ServerProcess, pictures: Any) -> None:
    with tritonclient.http.InferenceServerClient(server.http) as client:
        tensor = tritonclient.http.InferInput("image", [1, 3, 224, 223], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 3, 224, 223), np.float32))
        with pytest.raises(tritonclient.http.InferenceServerException, match="unexpected shape for input 'image'"):
            client.infer("traced", [tensor])
    assert ask(tritonclient.http, server.http, "traced", FORMS["traced"], pictures[:1]).shape == (1, 1000)


def listen(address: str, chunks: Any, sequence: str) -> list[float]:
    """The probability of speech in each chunk of a recording."""
    found = []
    with tritonclient.http.InferenceServerClient(address) as client:
        for number, chunk in enumerate(chunks):
            tensor = tritonclient.http.InferInput("chunk", [1, 512], "FP32")
            tensor.set_data_from_numpy(chunk[None])
            ends = {"sequence_start": number == 0, "sequence_end": number == len(chunks) - 1}
            answer = client.infer("speech", [tensor], sequence_id=sequence, **ends)
            found.append(float(answer.as_numpy("probability")[0, 0]))
    return found


def test_each_sequence_has_a_module_that_remembers(server: ServerProcess) -> None:
    """Two recordings at once, twice: four sequences on two instances, each as a module of its own hears it."""
    chunks = CLIENT.chunks(CLIENT.conversation())[200:280]
    parts = [chunks, chunks[::-1].copy()]
    expected = []
    for part in parts:
        detector = torch.jit.load(str(package_file("silero_vad", "data", "silero_vad.jit")))
        with torch.inference_mode():
            expected.append([float(detector(torch.from_numpy(chunk[None].copy()), 16000)) for chunk in part])
    for turn in range(2):
        with ThreadPoolExecutor(2) as pool:
            given = list(pool.map(lambda n, turn=turn: listen(server.http, parts[n], f"{turn}-{n}"), range(2)))
        for one, other in zip(given, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-4)
