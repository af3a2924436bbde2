"""Reads the graph of an ONNX file for people to look at: operators, names and shapes. Weights are skipped, whatever their size;
the package `onnx` is not needed.

The file is a message of protobuf: fields, each a tag with the number of the field and its wire type, and then its value. Messages
and texts have a length, so that one is skipped by its first bytes. The numbers of fields are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec

from tpy.errors import Internal, Unsupported
from tpy.limits import GRAPH_FIELDS_MAX, GRAPH_KEPT_BYTES_MAX, GRAPH_NAME_BYTES_MAX, GRAPH_NODES_MAX
from tpy.messages import DataType, GraphNode, GraphTensor, ModelGraph

SUFFIX: Final = ".onnx"

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}
_MORE: Final = 0x80
_VARINT_BYTES_MAX: Final = 10
_HEAD_BYTES_MAX: Final = 2 * _VARINT_BYTES_MAX
"""A tag and a number or length."""
_ENTRY_BYTES: Final = 8
"""A place in a list."""

_MODEL_GRAPH: Final = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 3, 4, 5, 7
_ATTRIBUTE_NAME: Final = 1
_ATTRIBUTE_GRAPHS: Final = (6, 11)
_INITIALIZER_NAME: Final = 8
_VALUE_NAME, _VALUE_TYPE = 1, 2
_TENSOR_ELEMENT, _TENSOR_SHAPE = 1, 2
_SHAPE_DIMENSION: Final = 1
_DIMENSION_SIZE, _DIMENSION_NAME = 1, 2

_TENSOR: Final = 1
_OTHER_TYPES: Final = {4: "sequence", 5: "map", 7: "opaque", 8: "sparse tensor", 9: "optional"}
"""By the field of a type that says which it is."""

_ELEMENTS: Final = {
    1: DataType.FP32.value,
    2: DataType.UINT8.value,
    3: DataType.INT8.value,
    4: DataType.UINT16.value,
    5: DataType.INT16.value,
    6: DataType.INT32.value,
    7: DataType.INT64.value,
    8: DataType.BYTES.value,
    9: DataType.BOOL.value,
    10: DataType.FP16.value,
    11: DataType.FP64.value,
    12: DataType.UINT32.value,
    13: DataType.UINT64.value,
    14: "COMPLEX64",
    15: "COMPLEX128",
    16: DataType.BF16.value,
    17: "FLOAT8E4M3FN",
    18: "FLOAT8E4M3FNUZ",
    19: "FLOAT8E5M2",
    20: "FLOAT8E5M2FNUZ",
    21: "UINT4",
    22: "INT4",
    23: "FLOAT4E2M1",
    24: "FLOAT8E8M0",
    25: "UINT2",
    26: "INT2",
    27: "FLOAT6E2M3",
    28: "FLOAT6E3M2",
}


class _Broken(Exception):
    """The file is not a message."""


class _Span(NamedTuple):
    """A part of the file."""

    begin: int
    end: int


_Field = tuple[int, int | _Span]
"""The number of a field, and its value: a number, or the place of anything else."""


def read_graph(path: Path) -> ModelGraph:
    """The first GRAPH_NODES_MAX nodes of the graph in the file, or in the file of the same name in a folder. Blocking.

    Raises Unsupported for a file of another kind and for a graph beyond the bounds, Internal for a file that cannot be read.
    """
    if path.suffix != SUFFIX:
        raise Unsupported(f"the graph is shown of ONNX files ({SUFFIX}) only")
    try:
        if path.is_dir():
            path = path / path.name
        if not path.is_file():  # opening a pipe would wait for its writer
            raise Internal(f"the graph cannot be shown: '{path.name}' is not there any more")
        with path.open("rb") as file:
            return _GraphReader(file, path.stat().st_size).read(path.name)
    except OSError as error:
        raise Internal(f"the graph cannot be shown: '{path.name}' cannot be read: {error.strerror}") from error
    except _Broken as error:
        raise Internal(f"the graph cannot be shown: '{path.name}' is not an ONNX model, or is damaged: {error}") from error


class _GraphReader:
    """Walks one file. Bounded are the fields that it looks at and the bytes that it keeps."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._fields_left = GRAPH_FIELDS_MAX
        self._bytes_left = GRAPH_KEPT_BYTES_MAX

    def read(self, name: str) -> ModelGraph:
        """The graph of the model in this file. Raises _Broken, OSError, Unsupported."""
        graph = next((value for number, value in self._fields(_Span(0, self._size)) if number == _MODEL_GRAPH), None)
        if graph is None:
            raise _Broken("it has no graph")
        nodes: list[GraphNode] = []
        ends: dict[int, list[GraphTensor]] = {_GRAPH_INPUT: [], _GRAPH_OUTPUT: []}
        node_count = 0
        for number, value in self._fields(graph):
            if number == _GRAPH_NODE:
                node_count += 1
                if node_count <= GRAPH_NODES_MAX:
                    nodes.append(self._node(value))
            elif number in ends:
                ends[number].append(self._tensor(value))
        outputs = ends[_GRAPH_OUTPUT]
        known = {tensor.name: tensor for tensor in outputs}
        weights = self._read_rest(graph, ends[_GRAPH_INPUT], nodes, known)
        return ModelGraph(
            file=name,
            inputs=tuple(tensor for tensor in ends[_GRAPH_INPUT] if tensor.name not in weights),
            outputs=tuple(outputs),
            nodes=tuple(_described(node, known) for node in nodes),
            node_count=node_count,
        )

    def _read_rest(
        self, graph: int | _Span, inputs: list[GraphTensor], nodes: list[GraphNode], known: dict[str, GraphTensor]
    ) -> set[str]:
        """Add the types that the graph tells of the nodes' outputs to `known`. Returns the inputs that are weights, as all
        weights were before IR version 4."""
        wanted = {tensor.name for node in nodes for tensor in node.outputs}
        names = {tensor.name for tensor in inputs}
        weights = set()
        for number, value in self._fields(graph):
            if number == _GRAPH_VALUE_INFO and self._name(value, _VALUE_NAME) in wanted:
                tensor = self._tensor(value)
                known[tensor.name] = tensor
            elif number == _GRAPH_INITIALIZER and names:
                weights.add(self._name(value, _INITIALIZER_NAME))
        return weights & names

    def _node(self, node: int | _Span) -> GraphNode:
        texts = {_NODE_NAME: "", _NODE_OPERATOR: "", _NODE_DOMAIN: ""}
        lists: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_ATTRIBUTE: []}
        for number, value in self._fields(node):
            if number in texts:
                texts[number] = self._kept_text(value)
            elif number == _NODE_ATTRIBUTE:
                lists[number] += self._named_graphs(value)
            elif number in lists and (name := self._kept_text(value)):  # without a name: left out
                lists[number].append(name)
        return GraphNode(
            operator=texts[_NODE_OPERATOR],
            name=texts[_NODE_NAME],
            domain=texts[_NODE_DOMAIN],
            inputs=tuple(lists[_NODE_INPUT]),
            outputs=tuple(GraphTensor(name=name) for name in lists[_NODE_OUTPUT]),
            subgraphs=tuple(lists[_NODE_ATTRIBUTE]),
        )

    def _named_graphs(self, attribute: int | _Span) -> list[str]:
        """The name of an attribute that is a graph, or several."""
        name, is_graph = "", False
        for number, value in self._fields(attribute):
            if number == _ATTRIBUTE_NAME:
                name = self._kept_text(value)
            is_graph = is_graph or number in _ATTRIBUTE_GRAPHS
        return [name] if is_graph else []

    def _tensor(self, info: int | _Span) -> GraphTensor:
        name, datatype, shape = "", "", None
        for number, value in self._fields(info):
            if number == _VALUE_NAME:
                name = self._kept_text(value)
            elif number == _VALUE_TYPE:
                for kind, of_kind in self._fields(value):
                    if kind == _TENSOR:
                        datatype, shape = self._element_and_shape(of_kind)
                    else:
                        datatype = _OTHER_TYPES.get(kind, datatype)
        return GraphTensor(name=name, datatype=datatype, shape=shape)

    def _element_and_shape(self, tensor: int | _Span) -> tuple[str, tuple[int | str, ...] | None]:
        datatype, shape = "", None
        for number, value in self._fields(tensor):
            if number == _TENSOR_ELEMENT and isinstance(value, int):
                datatype = _ELEMENTS.get(value, f"type {value}" if value else "")
            elif number == _TENSOR_SHAPE:
                shape = tuple(self._size_of(size) for number, size in self._fields(value) if number == _SHAPE_DIMENSION)
        return datatype, shape

    def _size_of(self, dimension: int | _Span) -> int | str:
        """A size, its name, or -1 for one that is not known."""
        self._keep(_ENTRY_BYTES)
        found: int | str = -1
        for number, value in self._fields(dimension):
            if number == _DIMENSION_SIZE and isinstance(value, int):
                found = value if value < 1 << 63 else -1
            elif number == _DIMENSION_NAME:
                found = self._kept_text(value) or -1
        return found

    def _name(self, message: int | _Span, wanted: int) -> str:
        return next((self._text(value) for number, value in self._fields(message) if number == wanted), "")

    def _kept_text(self, text: int | _Span) -> str:
        found = self._text(text)
        self._keep(_ENTRY_BYTES + len(found))
        return found

    def _text(self, text: int | _Span) -> str:
        """The text; of a longer one than GRAPH_NAME_BYTES_MAX its beginning."""
        begin, end = _span(text)
        return self._bytes(begin, min(end - begin, GRAPH_NAME_BYTES_MAX)).decode("utf-8", "replace")

    def _keep(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise Unsupported(
                f"the graph is too large to be shown: its names and shapes take more than {GRAPH_KEPT_BYTES_MAX} bytes"
            )

    def _fields(self, message: int | _Span) -> Iterator[_Field]:
        """The fields of a message. Between two of them other parts of the file may be read."""
        at, end = _span(message)
        while at < end:
            if not self._fields_left:
                raise Unsupported(f"the graph is too large to be shown: it has more than {GRAPH_FIELDS_MAX} parts")
            self._fields_left -= 1
            head = self._bytes(at, min(_HEAD_BYTES_MAX, end - at))
            tag, used = _varint(head, 0)
            number, wire_type = tag >> 3, tag & 7
            value: int | _Span
            if wire_type == _VARINT:
                value, used = _varint(head, used)
                at += used
            elif wire_type == _LENGTH_DELIMITED:
                length, used = _varint(head, used)
                value = _Span(at + used, at + used + length)
                at = value.end
            elif wire_type in _FIXED_BYTES:
                value = _Span(at + used, at + used + _FIXED_BYTES[wire_type])
                at = value.end
            else:
                raise _Broken(f"field {number} has the unknown wire type {wire_type}")
            if at > end:
                raise _Broken(f"field {number} ends {at - end} bytes behind what it is in")
            yield number, value

    def _bytes(self, begin: int, size: int) -> bytes:
        self._file.seek(begin)
        found = self._file.read(size)
        if len(found) < size:
            raise _Broken("it has become shorter")
        return found


def _described(node: GraphNode, known: dict[str, GraphTensor]) -> GraphNode:
    return msgspec.structs.replace(node, outputs=tuple(known.get(tensor.name, tensor) for tensor in node.outputs))


def _span(value: int | _Span) -> _Span:
    if isinstance(value, int):
        raise _Broken("there is a number where a message or a text belongs")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits to a byte, lowest first, and where it ends."""
    value = 0
    for count, octet in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (octet & ~_MORE) << (7 * count)
        if octet < _MORE:
            return value, at + count + 1
    raise _Broken("a number does not end")
