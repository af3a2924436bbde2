"""The images of a request, by the name of Triton's vLLM backend: files in Base64. They are not decoded here."""

from __future__ import annotations

import binascii
import re
from typing import Final

from tpy.config.model_config import ModelInput
from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_IMAGES_BYTES_MAX, ENGINE_IMAGES_MAX
from tpy.messages import DataType
from tpy_data.generation.core.inputs import Inputs

IMAGE: Final = "image"
"""The input."""

INPUT: Final = ModelInput(name=IMAGE, data_type=DataType.BYTES, dims=(-1,), optional=True)

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""By the names of Pillow."""

_BEGINNINGS: Final = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF....WEBP|GIF8[79]a|BM", re.DOTALL)

_BASE64_BYTES: Final = ENGINE_IMAGES_BYTES_MAX * 4 // 3 + 4


def count_of(inputs: Inputs) -> int:
    """The number of images."""
    tensor = inputs.get(IMAGE)
    return 0 if tensor is None else tensor.array.size


def images_of(inputs: Inputs) -> tuple[bytes, ...]:
    """The files. Raises InvalidArgument for too many, and for what is not an image in a format that is known."""
    count = count_of(inputs)
    if count > ENGINE_IMAGES_MAX:
        raise InvalidArgument(f"'{IMAGE}' has {count} images, at most {ENGINE_IMAGES_MAX} are taken")
    if not count:
        return ()
    texts = [bytes(each) for each in inputs[IMAGE].array.reshape(-1)]
    size = sum(map(len, texts))
    if size > _BASE64_BYTES:
        raise InvalidArgument(f"'{IMAGE}' has {size} bytes of Base64, at most {_BASE64_BYTES} are taken")
    return tuple(_file_of(text, f"image {place} of {count}") for place, text in enumerate(texts, 1))


def _file_of(text: bytes, name: str) -> bytes:
    try:
        data = binascii.a2b_base64(b"".join(text.split()), strict_mode=True)
    except binascii.Error as error:
        raise InvalidArgument(f"'{IMAGE}': {name} is not Base64: {str(error).lower()}") from None
    if not _BEGINNINGS.match(data):
        raise InvalidArgument(f"'{IMAGE}': {name} is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file")
    return data
