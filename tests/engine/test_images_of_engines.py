"""Requests to engines with images: they reach the engine as files, and what is wrong with one is its own affair. In virtual time,
with fake engines."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from tests.virtual_executor import VirtualExecutor
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy.messages import DataType, InferenceRequest, Tensor
from tpy.testing.fake_engine import FakeEngine
from tpy_data.generation.core.asking import with_inputs_and_outputs

from .fakes import rig
from .test_engines import Served, tokens
from .virtual_engines import VirtualEngines
from .virtual_engines import asking as asking_text

PNG = b"\x89PNG\r\n\x1a\n"


@asynccontextmanager
async def served(*, takes_images: bool = True, **changes: Any) -> AsyncIterator[Served]:
    async with trio.open_nursery() as nursery:
        engines = VirtualEngines(nursery, FakeEngine, takes_images=takes_images)
        async with rig(backend=engines, executor=VirtualExecutor(nursery)) as plane:  # type: ignore[arg-type]  # another fake
            await plane.serve(with_inputs_and_outputs(ModelConfig(name="m", backend="fake", **changes), images=takes_images))
            yield Served(plane, engines)
        nursery.cancel_scope.cancel()


def asking(prompt: str, *images: bytes, count: int = 4) -> InferenceRequest:
    array = np.empty(len(images), object)
    array[:] = [base64.b64encode(image) for image in images]
    request = asking_text(prompt, tokens(count))
    return msgspec.structs.replace(request, inputs=(*request.inputs, Tensor("image", DataType.BYTES, array)))


async def test_images_reach_the_engine_in_their_order(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        streams = [here.submit(asking("a <image> and <image>", *each)) for each in ((PNG, PNG + b"1"), (PNG + b"22", PNG))]
        for stream in streams:
            await stream.ended.wait()
        assert [stream.text for stream in streams] == ["a image8 and image9 ", "a image10 and image8 "]


async def test_an_error_of_one_request_is_its_own(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        streams = [
            here.submit(each) for each in (asking("a", PNG), asking("<image>", b"x"), asking("<image>", PNG), asking("a b"))
        ]
        for stream in streams:
            await stream.ended.wait()
        assert [stream.error for stream in streams] == [
            "the prompt has no place for each of its 1 images",
            "'image': image 1 of 1 is not a PNG, JPEG, WEBP, GIF or BMP file",
            "",
            "",
        ]
        assert streams[2].text == "image8 image8 image8 image8 "


async def test_a_request_with_images_waits_for_their_room(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:  # 256 tokens, fewer than an image is counted for
        first, second = (here.submit(asking("<image> b", PNG, count=3)) for _ in range(2))
        await first.ended.wait()
        assert second.text == "", "nothing, while the first one has all room"
        await second.ended.wait()
        assert second.text == first.text


async def test_an_engine_without_images_has_no_such_input(autojump_clock: trio.testing.MockClock) -> None:
    async with served(takes_images=False) as here:
        with pytest.raises(InvalidArgument, match="'image'"):
            here.submit(asking("<image>", PNG))
        stream = here.submit(asking_text("a b", json.dumps({"max_tokens": 2})))
        await stream.ended.wait()
        assert stream.text == "a b "
