"""The classes of TensorFlow Serving's messages, in a separate pool: the package `tensorflow` has the same names."""

from __future__ import annotations

from typing import Any, Final

from tpy._proto import build_pool, messages
from tpy._proto.tensorflow_serving_descriptors import FILE_DESCRIPTOR_SET

POOL: Final = build_pool(FILE_DESCRIPTOR_SET)

tf: Final[Any] = messages("tensorflow.proto", POOL)
"""Messages of TensorFlow."""

pb: Final[Any] = messages("serving.proto", POOL)
"""Messages of TensorFlow Serving."""

TYPE_NUMBERS: Final = {value.name: value.number for value in POOL.FindEnumTypeByName("tensorflow.DataType").values}
"""TensorFlow's types by name."""
