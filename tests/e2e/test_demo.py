"""The demo models, asked about real files by the stock clients, sync and aio, and by `tpy demo`."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http.aio
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput, InferRequestedOutput, InferResult

from .server import ServerProcess, run_tpy


def _pictures() -> Path:
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "data"


PICTURES = _pictures()
KINDS = {
    Path(__file__): "python",
    Path(sys.executable).resolve(): "elf",
    PICTURES / "coffee.png": "png",
    PICTURES / "rocket.jpg": "jpeg",
    PICTURES / "no_time_for_that_tiny.gif": "gif",
    PICTURES / "lbpcascade_frontalface_opencv.xml": "xml",
    PICTURES / "lfw_subset.npy": "npy",
    Path(__file__).parents[2] / "README.md": "markdown",
    Path(__file__).parents[2] / "pyproject.toml": "toml",
}
BEST = {"chelsea.png": "a cat having a striped coat", "coffee.png": "espresso", "camera.png": "tripod"}


def files_input(name: str, contents: list[bytes]) -> InferInput:
    """Whole files as BYTES[N,1]."""
    tensor = InferInput(name, [len(contents), 1], "BYTES")
    tensor.set_data_from_numpy(np.array(contents, np.object_).reshape(-1, 1))
    return tensor


def array_input(name: str, array: np.ndarray, *, binary: bool = True) -> InferInput:
    """An array as it is."""
    datatype = {"float32": "FP32", "int32": "INT32"}[array.dtype.name]
    tensor = InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def label(answer: InferResult, output: str) -> list[str]:
    """The best label of each row of a classification."""
    return [row[0].split(":", 2)[2] for row in rows_of_text(answer, output)]


def rows_of_text(answer: InferResult, output: str) -> list[list[str]]:
    """A BYTES output; the client gives bytes when they came as binary, str when they came as JSON."""
    array = answer.as_numpy(output)
    assert array is not None
    return [[item if isinstance(item, str) else item.decode() for item in row] for row in array]


def test_the_types_of_real_files_in_one_batch(demo: InferenceServerClient) -> None:
    contents = [path.read_bytes() for path in KINDS]
    features = demo.infer("file_features", [files_input("FILE", contents)]).as_numpy("bytes")
    assert features is not None
    assert features.shape == (len(contents), 2048)
    top = InferRequestedOutput("target_label", class_count=1)
    answer = demo.infer("magika", [array_input("bytes", features)], outputs=[top])
    assert label(answer, "target_label") == list(KINDS.values())


@pytest.mark.parametrize("binary", [True, False])
def test_what_is_on_real_pictures(demo: InferenceServerClient, binary: bool) -> None:
    contents = [(PICTURES / name).read_bytes() for name in BEST]
    features = demo.infer("image_features", [files_input("IMAGE", contents)]).as_numpy("INPUT")
    assert features is not None
    top = InferRequestedOutput("PROBABILITIES", binary_data=binary, class_count=3)
    answer = demo.infer("efficientnet_lite0", [array_input("INPUT", features)], outputs=[top])
    assert label(answer, "PROBABILITIES") == list(BEST.values())
    values = [[float(text.split(":")[0]) for text in row] for row in rows_of_text(answer, "PROBABILITIES")]
    assert [len(row) for row in values] == [3, 3, 3]
    assert values == [sorted(row, reverse=True) for row in values]


def test_a_batch_is_its_rows(demo: InferenceServerClient) -> None:
    """Every row of a batch is answered as it is alone."""
    features = demo.infer("image_features", [files_input("IMAGE", [(PICTURES / n).read_bytes() for n in BEST])]).as_numpy("INPUT")
    assert features is not None
    together = demo.infer("efficientnet_lite0", [array_input("INPUT", features)]).as_numpy("PROBABILITIES")
    assert together is not None
    assert np.allclose(together.sum(axis=1), 1, atol=1e-4)
    for row, alone in zip(together, features, strict=True):
        answer = demo.infer("efficientnet_lite0", [array_input("INPUT", alone[np.newaxis])]).as_numpy("PROBABILITIES")
        assert answer is not None
        np.testing.assert_allclose(answer[0], row, atol=1e-5)


def test_json_and_binary_are_the_same_numbers(demo: InferenceServerClient) -> None:
    row = np.random.default_rng(3).integers(0, 256, (2, 2048)).astype(np.int32)
    answers = [
        demo.infer(
            "magika",
            [array_input("bytes", row, binary=binary_in)],
            outputs=[InferRequestedOutput("target_label", binary_data=binary_out)],
        ).as_numpy("target_label")
        for binary_in in (True, False)
        for binary_out in (True, False)
    ]
    for answer in answers:
        assert answer is not None
        assert answer.dtype == np.float32
        np.testing.assert_allclose(answer, answers[0], rtol=1e-6)


def test_a_file_that_is_no_picture_fails_alone(demo: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="not a picture: cannot identify image file"):
        demo.infer("image_features", [files_input("IMAGE", [b"no picture"])])
    demo.infer("image_features", [files_input("IMAGE", [(PICTURES / "coffee.png").read_bytes()])])


def test_many_at_once_with_the_aio_client(demo_server: ServerProcess) -> None:
    async def ask() -> list[str]:
        async with tritonclient.http.aio.InferenceServerClient(demo_server.http) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("magika")

            async def kind(content: bytes) -> str:
                features = await client.infer("file_features", [files_input("FILE", [content])])
                array = features.as_numpy("bytes")
                assert array is not None
                top = InferRequestedOutput("target_label", class_count=1)
                return label(await client.infer("magika", [array_input("bytes", array)], outputs=[top]), "target_label")[0]

            return list(await asyncio.gather(*(kind(content) for content in contents)))

    contents = [path.read_bytes() for path in KINDS]
    assert asyncio.run(ask()) == list(KINDS.values())


def test_tpy_demo_classifies_files(demo_server: ServerProcess) -> None:
    host, port = demo_server.http.split(":")
    outcome = run_tpy("demo", f"--host={host}", f"--port={port}", str(PICTURES / "coffee.png"), __file__)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("coffee.png: png (")
    assert lines[1].endswith("%  espresso")
    assert lines[4].startswith("test_demo.py: python (")
    assert len(lines) == 5


def test_tpy_demo_without_a_server_fails_with_a_message() -> None:
    outcome = run_tpy("demo", "--port=1", __file__)
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("tpy: error: no server at 127.0.0.1:1 (")
    assert outcome.err.endswith("; start one with: make serve\n")
    assert outcome.err.count("\n") == 1
