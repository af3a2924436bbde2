"""The images of a request to an engine: files in Base64, which are not decoded."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_IMAGES_MAX, ENGINE_TOKENS_PER_IMAGE
from tpy.messages import DataType, Tensor
from tpy_data.generation.core.asking import asked_of, cost_of, with_inputs_and_outputs
from tpy_data.generation.core.images import images_of

PNG = b"\x89PNG\r\n\x1a\nrest"


def texts(name: str, *values: bytes) -> dict[str, Tensor]:
    array = np.empty(len(values), object)
    array[:] = values
    return {name: Tensor(name, DataType.BYTES, array)}


def images(*files: bytes) -> dict[str, Tensor]:
    return texts("image", *map(base64.b64encode, files))


@pytest.mark.parametrize("file", [PNG, b"\xff\xd8\xff\xe0", b"RIFF\n\0\0\nWEBP", b"GIF89a", b"GIF87a", b"BM12"])
def test_files_of_known_formats_are_taken(file: bytes) -> None:
    request = asked_of(1, {**texts("text_input", b"x"), **images(file, PNG)}, {}, takes_images=True).request
    assert request.images == (file, PNG)


def test_lines_of_base64_are_joined() -> None:
    assert images_of(texts("image", base64.encodebytes(PNG * 20))) == (PNG * 20,)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"aGk", "'image': image 2 of 2 is not Base64: incorrect padding"),
        (b"a-_=", "'image': image 2 of 2 is not Base64: only base64 data is allowed"),
        (b"data:image/png;base64,aGk=", "'image': image 2 of 2 is not Base64"),
        (b"aGk=", "'image': image 2 of 2 is not a PNG, JPEG, WEBP, GIF or BMP file"),
        (base64.b64encode(b"II*\0"), "'image': image 2 of 2 is not a PNG, JPEG, WEBP, GIF or BMP file"),
        (b"", "'image': image 2 of 2 is not a PNG, JPEG, WEBP, GIF or BMP file"),
    ],
)
def test_what_is_not_an_image_is_named(value: bytes, error: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(error)):
        images_of(texts("image", base64.b64encode(PNG), value))


def test_there_are_bounds() -> None:
    count = ENGINE_IMAGES_MAX
    assert len(images_of(images(*[PNG] * count))) == count
    with pytest.raises(InvalidArgument, match=f"'image' has {count + 1} images, at most {count} are taken"):
        images_of(images(*[PNG] * (count + 1)))
    with pytest.raises(InvalidArgument, match=r"'image' has \d+ bytes of Base64, at most 44739246 are taken"):
        images_of(texts("image", b"A" * 30_000_000, b"A" * 15_000_000))


@given(st.lists(st.binary(max_size=100), max_size=3))
def test_any_bytes_are_images_or_refused(values: list[bytes]) -> None:
    try:
        found = images_of(texts("image", *values))
    except InvalidArgument:
        return
    assert [base64.b64encode(file) for file in found] == [b"".join(value.split()) for value in values]


def test_an_engine_without_images_refuses_them_by_name() -> None:
    with pytest.raises(
        InvalidArgument, match="input 'image' is not supported by the model's engine: it generates text from text"
    ):
        asked_of(1, {**texts("text_input", b"x"), **images(PNG)}, {})
    assert asked_of(1, {**texts("text_input", b"x"), **texts("image")}, {}).request.images == ()


def test_a_model_that_takes_images_has_the_input_of_vllm_backend() -> None:
    config = with_inputs_and_outputs(ModelConfig(name="m"), images=True)
    (found,) = [each for each in config.input if each.name == "image"]
    assert (found.data_type, found.dims, found.optional) == (DataType.BYTES, (-1,), True)
    assert "image" not in {each.name for each in with_inputs_and_outputs(ModelConfig(name="m")).input}


def test_an_image_costs_tokens() -> None:
    alone = cost_of(texts("text_input", b"x"), {})
    assert cost_of({**texts("text_input", b"x"), **images(PNG, PNG)}, {}).tokens == alone.tokens + 2 * ENGINE_TOKENS_PER_IMAGE
    assert cost_of({**texts("text_input", b"x"), **images(PNG, PNG)}, {}, 128).tokens == 128
