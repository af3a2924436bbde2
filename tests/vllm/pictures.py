"""Images for these tests."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def noise(seed: int, form: str = "PNG") -> bytes:
    """A file with an image, each seed another one."""
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def url_of(file: bytes, form: str = "png") -> str:
    """The image as a URL."""
    return f"data:image/{form};base64,{base64.b64encode(file).decode()}"


def plain(shade: int) -> bytes:
    """A file with an image of one shade, 0 to 255."""
    file = io.BytesIO()
    Image.new("L", (60, 60), shade).save(file, "PNG")
    return file.getvalue()
