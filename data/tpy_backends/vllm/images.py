"""Images of a request as vLLM takes them. How large they are is known before one is decoded. Needs no vLLM."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TypeVar

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_PIXELS_MAX
from tpy_data.generation.core.images import FORMATS, IMAGE

_Decoded = TypeVar("_Decoded")


def decoded(files: Sequence[bytes], decode: Callable[[bytes], _Decoded]) -> list[_Decoded]:
    """The images. Raises InvalidArgument for what cannot be decoded, or has too many pixels: then without decoding any."""
    pixels = 0
    for place, file in enumerate(files, 1):
        width, height = _size_of(file, f"image {place} of {len(files)}")
        pixels += width * height
        if pixels > ENGINE_PIXELS_MAX:
            earlier = ", with those before it" if place > 1 else ""
            raise InvalidArgument(
                f"'{IMAGE}': image {place} of {len(files)} has {width} x {height} pixels{earlier}, and those of a "
                f"request may have {ENGINE_PIXELS_MAX} together"
            )
    found = []
    for place, file in enumerate(files, 1):
        try:
            found.append(decode(file))
        except Exception as error:  # the contents are a client's, and decoders are not of one mind about what to raise
            raise _broken(f"image {place} of {len(files)}", error) from None
    return found


def _size_of(file: bytes, name: str) -> tuple[int, int]:
    """Its width and height by its header. Raises InvalidArgument."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as image:
            return image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InvalidArgument(
            f"'{IMAGE}': {name} has more than {ENGINE_PIXELS_MAX} pixels, as many as those of a request may have together"
        ) from None
    except Exception as error:
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> InvalidArgument:
    return InvalidArgument(f"'{IMAGE}': {name} cannot be decoded: {echo(str(error))}")
