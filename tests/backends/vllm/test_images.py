"""Images of a request are bounded before they are decoded. vLLM is not needed, Pillow is."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_PIXELS_MAX
from tpy_backends.vllm.images import decoded


def image(width: int, height: int, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, form)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in (header, data, b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def read(file: bytes) -> Any:
    found = Image.open(io.BytesIO(file))
    found.load()
    return found


def never(file: bytes) -> None:
    raise AssertionError("decoded")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_images_are_decoded_in_their_order(form: str) -> None:
    assert [each.size for each in decoded([image(8, 4, form), image(2, 3, form)], read)] == [(8, 4), (2, 3)]


@pytest.mark.parametrize("size", [(ENGINE_PIXELS_MAX // 1000 + 1, 1000), (10_000, 10_000), (100_000, 100_000), (2**31 - 1, 2)])
def test_a_bomb_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match=r"'image': image 1 of 2 has .* pixels"):
        decoded([bomb(*size), image(2, 2)], never)


def test_the_images_of_a_request_are_bounded_together() -> None:
    half = bomb(5000, ENGINE_PIXELS_MAX // 10_000)
    assert decoded([half, half], len) == [len(half)] * 2
    with pytest.raises(InvalidArgument, match=r"image 3 of 3 has 5000 x 5000 pixels, with those before it, and those of a"):
        decoded([half, half, half], never)


@pytest.mark.parametrize("file", [image(50, 50)[:-30], image(50, 50, "JPEG")[:300], b"GIF89a", b"BM", b"\x89PNG\r\n\x1a\n"])
def test_a_broken_file_is_named(file: bytes) -> None:
    with pytest.raises(InvalidArgument, match="'image': image 2 of 2 cannot be decoded: "):
        decoded([image(2, 2), file], read)


def test_a_file_of_another_format_is_refused() -> None:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "TIFF")
    with pytest.raises(InvalidArgument, match="'image': image 1 of 1 cannot be decoded"):
        decoded([file.getvalue()], never)
