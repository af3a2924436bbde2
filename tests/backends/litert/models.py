"""Small `.tflite` files, converted on the spot by TensorFlow."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpy.config import ModelConfig

TABLE = np.array([[10, 11], [20, 21], [30, 31]], np.float32)
_Spec = tf.TensorSpec


class Functions(tf.Module):
    """The functions that are converted."""

    @tf.function(input_signature=[_Spec([None, 1], tf.int32, name="INDEX")])
    def gather(self, INDEX: Any) -> dict[str, Any]:
        return {"DOUBLED": INDEX * 2, "ROWS": tf.gather(tf.constant(TABLE), INDEX)}

    @tf.function(input_signature=[_Spec([2, 3], tf.float32, name="x")])
    def fixed(self, x: Any) -> dict[str, Any]:
        return {"y": x * 2}

    @tf.function(input_signature=[_Spec([None], tf.string, name="TEXT")])
    def same(self, TEXT: Any) -> dict[str, Any]:
        return {"SAME": tf.identity(TEXT)}

    @tf.function(input_signature=[_Spec([], tf.float32, name="x")])
    def scalar(self, x: Any) -> dict[str, Any]:
        return {"y": x + 1}

    @tf.function(input_signature=[_Spec([2], tf.float32, name="x")])
    def huge(self, x: Any) -> dict[str, Any]:
        """Takes eight petabytes on the way."""
        return {"y": tf.reduce_sum(tf.sin(tf.broadcast_to(tf.reshape(x, [2, 1, 1]), [2, 1 << 30, 1 << 20])), [1, 2])}


def save(path: Path, **signatures: str) -> None:
    """Convert functions: signature -> name of the function."""
    module = Functions()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={name: getattr(module, each) for name, each in signatures.items()})
        path.write_bytes(tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(signatures)).convert())


def config(name: str = "m", **fields: Any) -> ModelConfig:
    """A configuration of this backend."""
    return ModelConfig(name=name, backend="litert", **fields)
