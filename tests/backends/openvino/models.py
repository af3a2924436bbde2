"""Small networks of OpenVINO, built on the spot, and what is needed to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from tpy.config import ModelConfig

Arrays = Mapping[str, np.ndarray[Any, Any]]
Node = Any
TABLE = np.array([[10, 11], [20, 21], [30, 31]], np.float32)


def save(
    path: Path, parameters: Mapping[str, tuple[Sequence[int], Any]], make: Callable[..., Mapping[str, Node] | Sequence[Node]]
) -> None:
    """Write the IR of a network: `parameters` are name -> shape and type, `make` returns its outputs by name, or without
    names."""
    nodes = []
    for name, (shape, kind) in parameters.items():
        node = ops.parameter(list(shape), kind, name=name)
        node.output(0).get_tensor().set_names({name})
        nodes.append(node)
    made = make(*nodes)
    outputs = made.values() if isinstance(made, Mapping) else made
    for name, node in made.items() if isinstance(made, Mapping) else ():
        node.output(0).get_tensor().set_names({name})
    openvino.save_model(openvino.Model([ops.result(node) for node in outputs], nodes, "network"), path, compress_to_fp16=False)


def constant(value: Any, kind: Any) -> Node:
    """A constant of that type."""
    return ops.constant(np.array(value, kind))


def gathering(index: Node) -> Mapping[str, Node]:
    """INDEX -> twice INDEX, and rows of a table."""
    rows = ops.gather(constant(TABLE, np.float32), index, constant(0, np.int64))
    return {"DOUBLED": ops.multiply(index, constant(2, np.int64)), "ROWS": rows}


def thirds(x: Node) -> Mapping[str, Node]:
    """Rows of three, which there are only if the number of elements allows it."""
    return {"y": ops.reshape(x, constant([-1, 3], np.int64), False)}


def config(name: str = "m", **fields: Any) -> ModelConfig:
    """A configuration of this backend."""
    return ModelConfig(name=name, backend="openvino", **fields)
