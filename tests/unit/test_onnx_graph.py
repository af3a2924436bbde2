"""The graph of ONNX files that the package `onnx` has written, damaged files, and what a file may cost."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.backends import onnx_models
from tpy import limits
from tpy.errors import Internal, Unsupported
from tpy.messages import DataType, GraphNode, GraphTensor, ModelGraph
from tpy.units import GIB, MIB
from tpy_data.onnx_graph import read_graph

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, None])


def weights(name: str, count: int = 3) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.zeros(count, np.float32), name)


def written(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[onnx.ValueInfoProto] = (),
    initializers: Sequence[onnx.TensorProto] = (),
    value_info: Sequence[onnx.ValueInfoProto] = (),
) -> Path:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers), value_info=list(value_info))
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def varint(value: int) -> bytes:
    octets = bytearray()
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes((*octets, value))


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_operators_names_and_shapes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["scaled"], name="scale"),
        helper.make_node("Odd", ["scaled", ""], ["y", "", "z"], domain="com.example"),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "N"])
    scaled = helper.make_tensor_value_info("scaled", TensorProto.FLOAT16, [])
    old = helper.make_tensor_value_info("w", TensorProto.FLOAT, [3])  # among the inputs, as before IR version 4
    assert read_graph(written(tmp_path, nodes, [X, old], [y], [weights("w")], [scaled])) == ModelGraph(
        file="model.onnx",
        inputs=(GraphTensor(name="x", datatype="FP32", shape=("N", 3, -1)),),
        outputs=(GraphTensor(name="y", datatype="INT64", shape=(2, "N")),),
        nodes=(
            GraphNode(
                operator="Mul", name="scale", inputs=("x", "w"), outputs=(GraphTensor(name="scaled", datatype="FP16", shape=()),)
            ),
            GraphNode(
                operator="Odd",
                domain="com.example",
                inputs=("scaled",),
                outputs=(GraphTensor(name="y", datatype="INT64", shape=(2, "N")), GraphTensor(name="z")),
            ),
        ),
        node_count=2,
    )


def test_subgraphs_are_named(tmp_path: Path) -> None:
    branches = [helper.make_graph([helper.make_node("Identity", ["x"], [name])], name, [], []) for name in ("one", "other")]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1], axis=1)
    several = helper.make_node("Several", [], ["z"], bodies=branches)
    found = read_graph(written(tmp_path, [node, several]))
    assert [sorted(each.subgraphs) for each in found.nodes] == [["else_branch", "then_branch"], ["bodies"]]
    assert found.node_count == 2


def test_types(tmp_path: Path) -> None:
    kinds = {number: name for name, number in TensorProto.DataType.items() if name != "UNDEFINED"}
    tensors = [helper.make_tensor_value_info(name, number, None) for number, name in kinds.items()]
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    others = {
        "sequence": helper.make_sequence_type_proto(element),
        "map": helper.make_map_type_proto(TensorProto.INT64, element),
        "optional": helper.make_optional_type_proto(element),
        "sparse tensor": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [1]),
    }
    tensors += [helper.make_value_info(name, kind) for name, kind in others.items()]
    found = {tensor.name: tensor for tensor in read_graph(written(tmp_path, [], tensors)).inputs}
    assert all(tensor.shape is None for tensor in found.values())
    ours = {TensorProto.DataType.Name(number): kind.value for kind, number in onnx_models.ELEMENT_TYPES.items()}
    assert {name: found[name].datatype for name in kinds.values()} == {name: ours.get(name, name) for name in kinds.values()}
    assert [found[name].datatype for name in others] == list(others)


def test_the_first_nodes_of_many(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"t{number}"], [f"t{number + 1}"], name=f"n{number}") for number in range(10_000)]
    shapes = [helper.make_tensor_value_info(f"t{number}", TensorProto.FLOAT, [number]) for number in range(1, 10_000)]
    found = read_graph(written(tmp_path, nodes, [X], value_info=shapes))
    assert found.node_count == 10_000
    assert [node.name for node in found.nodes] == [f"n{number}" for number in range(limits.GRAPH_NODES_MAX)]
    assert found.nodes[-1].outputs[0].shape == (limits.GRAPH_NODES_MAX,)


def test_weights_are_not_read(tmp_path: Path) -> None:
    """Those of 6 GiB, as initializers and in a Constant; of a file that takes no room on the disk."""
    raw_bytes = 2 * GIB
    raw = varint(9 << 3 | 2) + varint(raw_bytes)  # TensorProto.raw_data
    hole = object()

    def placed(number: int, parts: Sequence[bytes | object]) -> list[bytes | object]:
        size = sum(raw_bytes if part is hole else len(part) for part in parts if part is hole or isinstance(part, bytes))
        return [varint(number << 3 | 2) + varint(size), *parts]

    constant = placed(1, [field(2, b"k"), field(4, b"Constant"), *placed(5, [field(1, b"value"), *placed(5, [raw, hole])])])
    named_first = placed(5, [field(8, b"w"), raw, hole])
    named_last = placed(5, [raw, hole, field(8, b"v")])
    inputs = [field(11, field(1, name)) for name in (b"w", b"v", b"x")]
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        for part in placed(7, [*constant, *named_first, *named_last, *inputs]):
            if isinstance(part, bytes):
                file.write(part)
            else:
                file.seek(raw_bytes, os.SEEK_CUR)
        file.truncate()
    assert path.stat().st_size > 3 * raw_bytes
    tracemalloc.start()
    try:
        found = read_graph(path)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    assert [tensor.name for tensor in found.inputs] == ["x"]
    assert [(node.operator, node.outputs[0].name) for node in found.nodes] == [("Constant", "k")]


def test_a_file_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").mkdir()
    path = written(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], [X])
    assert read_graph(path.parent) == read_graph(path)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    content = onnx_models.affine(2, 1)
    path.write_bytes(content)
    whole = read_graph(path)
    ends = content.index(b"OUTPUT", content.rindex(b"INPUT"))  # of the graph; what follows says the version
    for size in range(ends):
        path.write_bytes(content[:size])
        with pytest.raises(Internal, match=r"'model\.onnx' is not an ONNX model, or is damaged"):
            read_graph(path)
    assert whole.node_count == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it has no graph"),
        (b"<!doctype html><p>not found", "wire type"),
        (varint(7 << 3) + b"\x01", "a number where a message"),
        (b"\x80" * 40, "a number does not end"),
        (field(7, field(1, field(4, b"Relu")))[:-1], "behind what it is in"),
    ],
)
def test_a_damaged_file(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(Internal, match=f"is damaged: .*{reason}"):
        read_graph(path)


@given(st.data())
def test_any_change_of_a_file_is_a_graph_or_a_reason(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(onnx_models.affine(2, 1))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.onnx"
    path.write_bytes(content)
    with contextlib.suppress(Internal, Unsupported):
        assert read_graph(path).node_count <= len(content)


@pytest.mark.parametrize(
    ("name", "make", "kind", "reason"),
    [
        ("model.py", Path.touch, Unsupported, r"ONNX files \(.onnx\) only"),
        ("model.onnx", lambda path: None, Internal, "'model.onnx' is not there any more"),
        ("model.onnx", os.mkfifo, Internal, "'model.onnx' is not there any more"),
        ("model.onnx", Path.mkdir, Internal, "'model.onnx' is not there any more"),
    ],
)
def test_no_file(name: str, make: Callable[[Path], object], kind: type[Exception], reason: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    with pytest.raises(kind, match=reason):
        read_graph(tmp_path / name)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (b"\x10\x00" * (limits.GRAPH_FIELDS_MAX + 1), "more than 1000000 parts"),
        (field(1, field(1, b"x" * 5000)) * 900 + field(11, field(1, b"y" * 5000)) * 3300, "names and shapes take more than"),
        (field(11, field(2, field(1, field(2, field(1, b"") * 600_000)))), "names and shapes take more than"),
    ],
    ids=["fields", "names", "dimensions"],
)
def test_a_graph_beyond_the_bounds(graph: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, graph))
    with pytest.raises(Unsupported, match=f"too large to be shown: it.* {reason}"):
        read_graph(path)


def test_a_long_name_is_cut(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="n" * 5000)
    assert len(read_graph(written(tmp_path, [node], [X])).nodes[0].name) == limits.GRAPH_NAME_BYTES_MAX


def test_a_model_that_a_runtime_takes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_models.identity(DataType.FP32, ["N", 3]))
    found = read_graph(path)
    assert found.inputs == (GraphTensor(name="INPUT", datatype="FP32", shape=("N", 3)),)
    assert found.nodes[0].outputs == found.outputs
