"""Arguments of pb_utils: what Triton's module takes for texts and integers. Its own examples name models by elements of BYTES."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tpy_data.backends.python.worker import arguments
from tpy_data.backends.python.worker.failures import TritonError
from tpy_data.backends.python.worker.request import InferenceRequest
from tpy_data.backends.python.worker.tensor import Tensor

TEXTS = [b"caf\xc3\xa9", bytearray(b"caf\xc3\xa9"), np.bytes_(b"caf\xc3\xa9"), np.str_("caf\u00e9"), "caf\u00e9"]


class Index:
    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize("name", TEXTS, ids=lambda name: type(name).__name__)
def test_texts(name: Any) -> None:
    tensor = Tensor(name, np.zeros(1, np.float32))
    request = InferenceRequest(model_name=name, request_id=name, inputs=[tensor], requested_output_names=[name])
    assert (tensor.name(), request.request_id()) == ("caf\u00e9",) * 2
    assert list(request.requested_output_names()) == ["caf\u00e9"]
    assert TritonError(name).message() == "caf\u00e9"
    assert all(type(text) is str for text in (tensor.name(), *request.requested_output_names()))


@pytest.mark.parametrize("number", [np.int64(3), np.uint8(3), Index(), 3], ids=lambda number: type(number).__name__)
def test_integers(number: Any) -> None:
    request = InferenceRequest(model_name="m", model_version=number, flags=number, timeout=number)
    assert (request.flags(), request.timeout()) == (3, 3)
    assert type(request.timeout()) is int


@pytest.mark.parametrize("wrong", [None, 3, 2.5, ["a"], memoryview(b"a")])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="model_name must be a str"):
        InferenceRequest(model_name=wrong)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        Tensor(wrong, np.zeros(1, np.float32))


@pytest.mark.parametrize("wrong", [None, "3", 2.0, -1, 2**64])
def test_what_is_no_integer_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="timeout must be an int from 0 to"):
        InferenceRequest(model_name="m", timeout=wrong)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        arguments.as_text(b"\xff")
