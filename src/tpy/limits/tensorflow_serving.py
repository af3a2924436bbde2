"""Bounds of TensorFlow Serving's ports."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

TENSOR_FIELDS_MAX: Final = 8_192
"""Fields of a TensorProto that are looked at one by one: dimensions, and numbers that are not packed. Strings are not counted."""

FILLED_BYTES_MAX: Final = 16 * MIB
"""A TensorProto with fewer elements than its shape has, whose last one stands for all others: a few bytes ask for this many, if
the model takes its shape."""

INLINE_FILLED_BYTES_MAX: Final = 256 * KIB
"""Such a tensor is made on the loop up to this size (0.1 ms; of strings, a millisecond), else in a thread."""

EXAMPLES_MAX: Final = 65_536
"""Examples of a request for classification or regression, and fields around them: far more than a batch has."""

CONTEXTS_BYTES_MAX: Final = 8 * MIB
"""Bytes of the context of examples, which is a part of each of them (two milliseconds to copy): a few megabytes would stand for a
terabyte."""

TASKS_MAX: Final = 64
"""Tasks of a MultiInference, each of which is a request to a model."""

INLINE_OUTPUT_ELEMENTS_MAX: Final = 8_192
"""Elements of outputs that are written into messages on the loop (two milliseconds); more are in a thread."""

INLINE_LITERALS_ELEMENTS_MAX: Final = 2_048
"""Elements of outputs with a NaN or an infinity that are written as JSON on the loop: their writer is ten times slower."""

INLINE_COMPRESS_BYTES_MAX: Final = 32 * KIB
"""Of outputs, what is compressed on the loop."""
