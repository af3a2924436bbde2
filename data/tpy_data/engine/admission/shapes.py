"""Shapes: fitting a tensor to configured dims, and `reshape`. Pure."""

from __future__ import annotations

Dims = tuple[int, ...]
"""Sizes; in a configuration -1 is any size >= 0."""


def fits(shape: Dims, dims: Dims) -> bool:
    """True when a tensor of this shape may stand where `dims` is configured (both without, or both with, the batch)."""
    if len(shape) != len(dims):
        return False
    # No generator: every request with a variable shape comes here.
    return False not in [want in (-1, have) for have, want in zip(shape, dims, strict=True)]


class Reshape:
    """A tensor's `reshape`: callers see `dims`, the model sees `model_dims`. Variable sizes go over in order: the n-th -1 of
    one is the n-th -1 of the other. With `batching`, shapes have the batch in front of both."""

    __slots__ = ("_batch", "_dims", "_model_dims")

    def __init__(self, dims: Dims, model_dims: Dims, *, batching: bool) -> None:
        self._dims = dims
        self._model_dims = model_dims
        self._batch = 1 if batching else 0

    def to_model(self, shape: Dims) -> Dims:
        """The model's shape of a caller's tensor whose shape fits `dims`."""
        return self._carry(shape, self._dims, self._model_dims)

    def to_caller(self, shape: Dims) -> Dims:
        """The caller's shape of a model's tensor. Raises ValueError when `shape` does not fit `model_dims`."""
        if not fits(shape[self._batch :], self._model_dims) or len(shape) < self._batch:
            expected = [*([-1] * self._batch), *self._model_dims]
            raise ValueError(f"shape {list(shape)} does not fit the configured reshape {expected}")
        return self._carry(shape, self._model_dims, self._dims)

    def _carry(self, shape: Dims, source: Dims, target: Dims) -> Dims:
        batch = self._batch
        variable = iter([size for size, dim in zip(shape[batch:], source, strict=True) if dim == -1])
        return (*shape[:batch], *(next(variable) if dim == -1 else dim for dim in target))
