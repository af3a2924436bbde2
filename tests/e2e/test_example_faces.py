"""The example `faces`: models in Python that call three networks as often as a picture needs, one after the other, or at once."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from .examples import Serve, package_file, python_command
from .server import ServerProcess

MODELS = ("faces", "faces_async")
ASTRONAUT = package_file("skimage", "data", "astronaut.png")
FACE = [179, 58, 269, 175]
"""The box of her face."""


@pytest.fixture
def server(example_server: Serve) -> ServerProcess:
    return example_server("faces")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http, concurrency=4) as connected:
        yield connected


def image_input(content: bytes) -> InferInput:
    tensor = InferInput("IMAGE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], dtype=object))
    return tensor


def find(client: InferenceServerClient, content: bytes, model: str) -> tuple[Any, Any, Any]:
    return found_in(client.infer(model, [image_input(content)]))


def found_in(answer: Any) -> tuple[Any, Any, Any]:
    box, score, landmarks = (answer.as_numpy(name) for name in ("BOX", "SCORE", "LANDMARKS"))
    return box, score, landmarks


@pytest.mark.parametrize("model", MODELS)
def test_a_face_is_found_where_it_is(client: InferenceServerClient, model: str) -> None:
    box, score, landmarks = find(client, ASTRONAUT.read_bytes(), model)
    assert box.shape == (1, 4)
    np.testing.assert_allclose(box[0], FACE, atol=6)
    assert score[0] > 0.99
    eye, other_eye, nose, mouth, other_mouth = landmarks[0]
    assert eye[0] < nose[0] < other_eye[0]
    assert max(eye[1], other_eye[1]) < nose[1] < min(mouth[1], other_mouth[1])
    assert ((landmarks[0] > FACE[:2]) & (landmarks[0] < FACE[2:])).all()


@pytest.mark.parametrize("model", MODELS)
def test_other_pictures_need_other_numbers_of_calls(client: InferenceServerClient, model: str) -> None:
    """Two faces; none, where onet is not even asked; a picture that is too small for one level of the pyramid."""
    assert find(client, pair(), model)[0].shape == (2, 4)
    before = calls(client)
    box, score, landmarks = find(client, package_file("skimage", "data", "chelsea.png").read_bytes(), model)
    assert (box.shape, score.shape, landmarks.shape) == ((0, 4), (0,), (0, 5, 2))
    asked = {name: count - before[name] for name, count in calls(client).items()}
    assert (asked["pnet"], asked["onet"]) == (6, 0)
    before = calls(client)
    assert find(client, encoded(Image.new("RGB", (30, 30))), model)[0].shape == (0, 4)
    assert calls(client)["pnet"] == before["pnet"]


@pytest.mark.parametrize("model", MODELS)
def test_a_file_that_is_no_picture_is_named_as_such(client: InferenceServerClient, model: str) -> None:
    with pytest.raises(InferenceServerException, match="not a picture: cannot identify image file") as caught:
        find(client, b"no picture", model)
    assert caught.value.status() == "400"


def test_both_find_the_same_and_together(client: InferenceServerClient) -> None:
    tensor = image_input(pair())
    asked = [client.async_infer(model, [tensor]) for model in MODELS * 2]
    found = [found_in(answer.get_result()) for answer in asked]
    for one in found[1:]:
        for array, other in zip(one, found[0], strict=True):
            np.testing.assert_allclose(array, other, atol=1e-3)


def test_the_client_of_the_example_prints_the_face(server: ServerProcess) -> None:
    for model in MODELS:
        command = python_command("faces/client.py", server.http, ASTRONAUT, model)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout == "from [180  59] to [268 174], 100% sure\n"


def encoded(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def pair() -> bytes:
    """The astronaut, and beside her the astronaut in a mirror."""
    one = Image.open(ASTRONAUT).convert("RGB")
    both = Image.new("RGB", (2 * one.width, one.height))
    both.paste(one, (0, 0))
    both.paste(one.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (one.width, 0))
    return encoded(both)


def calls(client: InferenceServerClient) -> dict[str, int]:
    """The number of requests that each model has answered."""
    statistics: Any = client.get_inference_statistics()
    return {model["name"]: int(model["inference_stats"]["success"]["count"]) for model in statistics["model_stats"]}
