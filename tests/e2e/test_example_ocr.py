"""The example `ocr`: an ensemble of seven models reads rendered pages, whatever is on them."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from PIL import Image, ImageDraw, ImageFont
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput, InferRequestedOutput

from .examples import Serve, python_command
from .server import ServerProcess

LINES = ("Inference Server", "Invoice No. 2026-1121", "Total: $1,234.56", "upside down", "Thank you for your order!")


@pytest.fixture
def server(example_server: Serve) -> ServerProcess:
    return example_server("ocr")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http, concurrency=4) as connected:
        yield connected


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that the example draws."""
    path = tmp_path_factory.mktemp("page") / "page.png"
    subprocess.run(python_command("ocr/page.py", path), check=True)
    return path


def drawn(*lines: tuple[str, int, int], size: tuple[int, int] = (480, 160)) -> bytes:
    """A PNG with texts, each at x, y."""
    image = Image.new("RGB", size, "white")
    for text, x, y in lines:
        ImageDraw.Draw(image).text((x, y), text, "black", ImageFont.load_default(32))
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def image_input(content: bytes, kind: Any = InferInput) -> Any:
    tensor = kind("IMAGE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([content], dtype=object))
    return tensor


def read(client: InferenceServerClient, content: bytes, *outputs: str) -> dict[str, Any]:
    """The outputs; TEXT as str."""
    wanted = [InferRequestedOutput(name) for name in outputs or ("TEXT", "SCORE", "BOX")]
    answer = client.infer("ocr", [image_input(content)], outputs=wanted)
    arrays = {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}
    return {name: [text.decode() for text in array] if name == "TEXT" else array for name, array in arrays.items()}


def test_a_page_is_read_word_for_word(client: InferenceServerClient, page: Path) -> None:
    answer = read(client, page.read_bytes())
    assert tuple(answer["TEXT"]) == LINES
    assert answer["SCORE"].shape == (5,)
    assert answer["SCORE"].min() > 0.9
    assert answer["BOX"].shape == (5, 4)
    left, top, right, bottom = answer["BOX"][0]
    assert 30 < left < 60
    assert 20 < top < 60 < bottom < 100
    assert 370 < right < 410
    assert (answer["BOX"][:, 3] > answer["BOX"][:, 1]).all()


def test_any_number_of_lines(client: InferenceServerClient) -> None:
    assert read(client, drawn(("Monday", 20, 20), ("Tuesday", 260, 24)))["TEXT"] == ["Monday", "Tuesday"]
    many = [(f"Line {number}", 40, 60 * number - 30) for number in range(1, 10)]
    assert read(client, drawn(*many, size=(320, 640)))["TEXT"] == [text for text, _, _ in many]


def test_a_blank_page_has_no_lines(client: InferenceServerClient) -> None:
    answer = read(client, drawn())
    assert answer["TEXT"] == []
    assert answer["SCORE"].shape == (0,)
    assert answer["BOX"].shape == (0, 4)


def test_what_is_not_asked_for_is_not_done(client: InferenceServerClient, page: Path) -> None:
    """BOX needs three of the steps."""
    before = executions(client)
    answer = read(client, page.read_bytes(), "BOX")
    assert list(answer) == ["BOX"]
    done = {model: count - before[model] for model, count in executions(client).items()}
    assert (done["ocr_page"], done["ocr_detector"], done["ocr_boxes"], done["ocr_turn"], done["ocr_text"]) == (1, 1, 1, 0, 0)


def test_a_file_that_is_no_picture_is_named_as_such(client: InferenceServerClient, page: Path) -> None:
    with pytest.raises(InferenceServerException, match="in ensemble 'ocr', not a picture: cannot identify image file") as caught:
        read(client, b"no picture")
    assert caught.value.status() == "400"
    assert len(read(client, page.read_bytes())["TEXT"]) == 5


def test_several_pages_at_once_over_grpc(server: ServerProcess) -> None:
    words = ("Monday", "Tuesday", "Wednesday", "Thursday")
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(4) as pool:
        tensors = [image_input(drawn((word, 20, 50)), tritonclient.grpc.InferInput) for word in words]
        answers = list(pool.map(lambda tensor: client.infer("ocr", [tensor]), tensors))
    assert [answer.as_numpy("TEXT")[0].decode() for answer in answers] == list(words)


def test_the_client_of_the_example_prints_the_lines(server: ServerProcess, page: Path) -> None:
    done = subprocess.run(python_command("ocr/client.py", server.http, page), check=True, capture_output=True, text=True)
    found = re.findall(r"(?m)^ *\d+%  at \[ *\d+ +\d+\]  (.*)$", done.stdout)
    assert tuple(found) == LINES


def executions(client: InferenceServerClient) -> dict[str, int]:
    statistics: Any = client.get_inference_statistics()
    return {model["name"]: int(model["execution_count"]) for model in statistics["model_stats"]}
