"""Small models of TensorFlow, built on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpy.config import ModelConfig

TABLE = np.array([[10, 11], [20, 21], [30, 31]], np.float32)
_Spec = tf.TensorSpec


class Gathering(tf.Module):
    """INDEX -> twice INDEX, and rows of a table in a variable; an index that the table does not have raises."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(TABLE)

    @tf.function(input_signature=[_Spec([None, 1], tf.int64, name="INDEX")])
    def gather(self, INDEX: Any) -> dict[str, Any]:
        return {"DOUBLED": INDEX * 2, "ROWS": tf.gather(self.table, INDEX)}

    @tf.function(input_signature=[_Spec([None], tf.string, name="TEXT")])
    def measure(self, TEXT: Any) -> dict[str, Any]:
        return {"LENGTH": tf.strings.length(TEXT), "SAME": tf.identity(TEXT)}


class Adding(tf.Module):
    """Types and ranks that need care."""

    @tf.function(input_signature=[_Spec([], tf.float32, name="x")])
    def scalar(self, x: Any) -> dict[str, Any]:
        return {"y": x + 1}

    @tf.function(input_signature=[_Spec([None, 2], tf.bfloat16, name="a"), _Spec([None, 2], tf.float32, name="b")])
    def bf16(self, a: Any, b: Any) -> dict[str, Any]:
        wide = tf.cast(a, tf.float32) + b
        return {"sum": tf.cast(wide, tf.bfloat16), "wide": wide}

    @tf.function(input_signature=[_Spec(None, tf.float32, name="x")])
    def any_rank(self, x: Any) -> dict[str, Any]:
        return {"y": x * 2}


def save_gathering(folder: Path) -> None:
    """With two signatures."""
    module = Gathering()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.gather, "texts": module.measure})


def save_adding(folder: Path, **signatures: str) -> None:
    """With those signatures: name -> name of the function."""
    module = Adding()
    tf.saved_model.save(module, str(folder), signatures={name: getattr(module, each) for name, each in signatures.items()})


def save_graph(path: Path) -> None:
    """A frozen graph: x -> y = 2 x + offset, and z, which needs w as well; offset has a default."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        w = tf.compat.v1.placeholder(tf.float32, [None, 2], name="w")
        offset = tf.compat.v1.placeholder_with_default(np.float32(0), [], name="offset")
        y = tf.add(x * 2.0, offset, name="y")
        tf.add(y, w, name="z")
        path.write_bytes(graph.as_graph_def().SerializeToString())


def save_counter_graph(path: Path) -> None:
    """A graph whose variable is set by the operation `start`: x -> y = x + 5."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        five = tf.compat.v1.get_variable("five", initializer=np.float32(5), use_resource=True)
        tf.add(x, five, name="y")
        tf.group(five.initializer, name="start")
        path.write_bytes(graph.as_graph_def().SerializeToString())


def save_huge_graph(path: Path) -> None:
    """A graph whose operation `start` makes a variable of 128 TiB: x -> y = x."""
    shape = [1 << 23, 1 << 22]
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2], name="x")
        variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name="huge")
        tf.raw_ops.AssignVariableOp(resource=variable, value=tf.random.uniform(shape), name="start")
        tf.identity(x, name="y")
        path.write_bytes(graph.as_graph_def().SerializeToString())


def config(name: str = "m", **fields: Any) -> ModelConfig:
    """A configuration of this backend."""
    return ModelConfig(name=name, backend="tensorflow", **fields)
