"""A long JSON array to a NumPy array, piece by piece: no step holds the interpreter for long, and the elements never exist as
Python objects all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.pieces import LongArray
from tpy.limits import TENSOR_DIMS_MAX

Array = np.ndarray[Any, Any]
Typed = Callable[[list[Any]], Array]
"""Makes the array of elements that are in no list. Raises InvalidArgument."""


def long_array_of(value: LongArray, typed: Typed, name: str) -> Array:
    """The array in `value`. Raises InvalidArgument for lists of different lengths, and as `typed` and `LongArray.pieces`."""
    lengths = _Lengths(name)
    chunks: list[Array] = []
    for piece in value.pieces():
        flat: list[Any] = []
        lengths.walk(piece.parse(), 1, piece.piece.depth, piece.piece.depth_after, flat)
        chunks.append(typed(flat))
    return np.concatenate(chunks).reshape(lengths.shape())


class _Lengths:
    """The lengths of lists by depth, from 1 on: of the open one, and of all that are closed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open = [0] * (TENSOR_DIMS_MAX + 2)
        self._closed: dict[int, int] = {}
        self._leaf = 0
        """The depth of lists that hold elements."""

    def shape(self) -> tuple[int, ...]:
        """The shape, when there are no more pieces."""
        return (self._open[1], *(self._closed[depth] for depth in sorted(self._closed)))

    def walk(self, node: list[Any], depth: int, before: int, behind: int, flat: list[Any]) -> None:
        """Take the part of a list that is in a piece; its elements go to `flat`. Lists up to the depth `before` were open before
        it, lists up to `behind` go on behind it."""
        if depth > TENSOR_DIMS_MAX:
            raise InvalidArgument(f"input '{echo(self._name)}': nested more than {TENSOR_DIMS_MAX} deep")
        if before < depth:
            self._open[depth] = 0
        if node and type(node[0]) is list:
            self._walk_lists(node, depth, before, behind, flat)
        else:
            self._require(self._leaf in (0, depth) and list not in set(map(type, node)), depth)
            self._leaf = depth
            self._open[depth] += len(node)
            flat += node
        if behind < depth:
            self._require(self._closed.setdefault(depth, self._open[depth]) == self._open[depth], depth)

    def _walk_lists(self, node: list[Any], depth: int, before: int, behind: int, flat: list[Any]) -> None:
        last = len(node) - 1
        for number, child in enumerate(node):
            self._require(type(child) is list, depth)
            goes_on = number == 0 and before > depth
            if not goes_on:
                self._open[depth] += 1
            self.walk(child, depth + 1, before if number == 0 else depth, behind if number == last else depth, flat)

    def _require(self, is_even: bool, depth: int) -> None:
        if not is_even:
            raise InvalidArgument(f"input '{echo(self._name)}': Encountered list at unexpected size at level: {depth - 1}")
