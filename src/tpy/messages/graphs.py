"""The graph of a model, as its file has it."""

from __future__ import annotations

import msgspec


class GraphTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor. `datatype` "" and `shape` None: the file does not tell; a size is a number, a name, or -1 for one that is not
    known."""

    name: str
    datatype: str = ""
    shape: tuple[int | str, ...] | None = None


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node. `domain` "": the operator is one of the standard. `inputs` are names of tensors, weights among them; `subgraphs`
    names of attributes that are graphs, as the branches of an If."""

    operator: str
    name: str = ""
    domain: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[GraphTensor, ...] = ()
    subgraphs: tuple[str, ...] = ()


class ModelGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph: the first of its nodes, in the order of the file. `node_count` counts all."""

    file: str
    inputs: tuple[GraphTensor, ...] = ()
    outputs: tuple[GraphTensor, ...] = ()
    nodes: tuple[GraphNode, ...] = ()
    node_count: int = 0
