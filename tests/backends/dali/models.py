"""Small pipelines, serialized on the spot or as text of Python files, and pictures for them."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali as dali
from nvidia.dali import fn, types
from PIL import Image

from tpy.config import ModelConfig

_HEAD = """\
import nvidia.dali as dali
import nvidia.dali.types as types
from nvidia.dali import fn
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
"""

DOUBLING = (
    _HEAD
    + """\
@dali.pipeline_def(batch_size=16, num_threads=1, device_id=0, output_dtype=[types.INT32, types.FLOAT], output_ndim=[1, 1])
def pipe():
    x = fn.external_source(device="cpu", name="x", dtype=types.INT32, ndim=1)
    y = fn.external_source(device="cpu", name="y", dtype=types.FLOAT, ndim=1)
    return fn.cast(x * 2, dtype=types.INT32, name="doubled"), fn.reshape(y + 1, layout="", name="next")
"""
)
"""Two inputs of any length, and two outputs. Made for a GPU that it does not use."""

SAYS_NOTHING = (
    _HEAD
    + """\
@dali.pipeline_def(batch_size=8, num_threads=1, device_id=None)
def pipe():
    return fn.external_source(device="cpu", name="x")
"""
)
"""Neither types nor dimensions."""

DECODING = (
    _HEAD
    + """\
@dali.pipeline_def(batch_size=8, num_threads=1, device_id=None, output_dtype=types.FLOAT, output_ndim=3)
def pipe():
    encoded = fn.external_source(device="cpu", name="DALI_INPUT_0", dtype=types.UINT8, ndim=1)
    images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_x=8, resize_y=8)
    return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", std=[255.0] * 3, name="DALI_OUTPUT_0")
"""
)
"""JPEG to numbers from 0 to 1."""


def save_text(path: Path, text: str) -> None:
    """The pipeline of a Python file, serialized."""
    made: dict[str, Any] = {}
    exec(text.replace("@autoserialize", ""), made)
    path.write_bytes(made["pipe"](device_id=None).serialize())


def save(path: Path, *, batch_size: int = 16, ndim: int | None = 1) -> None:
    """A serialized pipeline of one input `x` (FP32) and two outputs: `sum` of each sample, a scalar, and `same`."""

    @dali.pipeline_def(
        batch_size=batch_size, num_threads=1, device_id=None, output_dtype=[types.FLOAT] * 2, output_ndim=[0, ndim]
    )
    def pipe() -> Any:
        x = fn.external_source(device="cpu", name="x", dtype=types.FLOAT, ndim=ndim)
        return fn.reductions.sum(x, name="sum"), fn.reshape(x, layout="", name="same")

    path.write_bytes(pipe().serialize())


def save_rows(path: Path) -> None:
    """One whose samples are lists of rows: `rows` is to be split."""

    @dali.pipeline_def(batch_size=4, num_threads=1, device_id=None, output_dtype=[types.INT32], output_ndim=[2])
    def pipe() -> Any:
        x = fn.external_source(device="cpu", name="x", dtype=types.INT32, ndim=1)
        return fn.reshape(x, shape=[-1, 2], name="rows")

    path.write_bytes(pipe().serialize())


def save_video(path: Path) -> None:
    """One whose input is a video: it gives four frames at a time."""

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=None, output_dtype=[types.UINT8], output_ndim=[4])
    def pipe() -> Any:
        frames = fn.experimental.inputs.video(name="VIDEO", sequence_length=4, device="cpu", last_sequence_policy="partial")
        return fn.reshape(frames, layout="", name="FRAMES")

    path.write_bytes(pipe().serialize())


def video(colours: Sequence[tuple[int, int, int]], size: tuple[int, int] = (64, 48)) -> np.ndarray[Any, Any]:
    """A film of frames of one colour each: Motion JPEG in an AVI file, which DALI decodes on a CPU."""
    frames = [jpeg(colour, size).tobytes() for colour in colours]
    count, largest = len(frames), max(map(len, frames))
    header = struct.pack("<14I", 40_000, largest * 25, 0, 0x10, count, 0, 1, largest, *size, 0, 0, 0, 0)
    stream = b"vidsMJPG" + struct.pack("<IHH8I4H", 0, 0, 0, 0, 1, 25, 0, count, largest, 0xFFFFFFFF, 0, 0, 0, *size)
    picture = struct.pack("<Iii2H4s5I", 40, *size, 1, 24, b"MJPG", size[0] * size[1] * 3, 0, 0, 0, 0)
    index, offset = b"", 4
    for frame in frames:
        index += b"00dc" + struct.pack("<3I", 0x10, offset, len(frame))
        offset += len(_chunk(b"00dc", frame))
    streams = _chunk(b"LIST", b"strl" + _chunk(b"strh", stream) + _chunk(b"strf", picture))
    lists = _chunk(b"LIST", b"hdrl" + _chunk(b"avih", header) + streams)
    film = _chunk(b"LIST", b"movi" + b"".join(_chunk(b"00dc", frame) for frame in frames))
    return np.frombuffer(_chunk(b"RIFF", b"AVI " + lists + film + _chunk(b"idx1", index)), np.uint8)


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def jpeg(colour: tuple[int, int, int], size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """A picture of one colour, encoded."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG", quality=95)
    return np.frombuffer(file.getvalue(), np.uint8)


def config(name: str = "m", **fields: Any) -> ModelConfig:
    """A configuration of this backend."""
    return ModelConfig(**{"name": name, "backend": "dali", "default_model_filename": "model.dali", **fields})
