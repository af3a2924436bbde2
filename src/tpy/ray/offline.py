"""Predictions for a data set of Ray Data: a server in each worker, columns of Arrow as tensors."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray.data
from ray.data.extensions import ArrowTensorArray

from tpy.embedded import Model, Server
from tpy.errors import InvalidArgument, TpyError
from tpy.limits.ray import RAY_OFFLINE_REQUESTS_MAX

Array = np.ndarray[Any, Any]

ON_ERROR = ("fail", "drop", "column")
ERROR_COLUMN = "error"
_ISOLATION = "python,isolation="

_log = logging.getLogger(__name__)


def predict(
    dataset: Any,
    *,
    repository: str | Sequence[str],
    model: str,
    columns: Mapping[str, str] | None = None,
    batch_size: int = 1024,
    concurrency: tuple[int, int] = (1, 1),
    on_error: str = "fail",
    cpus: float = 1.0,
    gpus: float = 0.0,
    **flags: Any,
) -> Any:
    """Returns the data set with a column for each output of the model. `columns` says which column an input is (default: that of
    its name). `batch_size` rows are read at a time by each of `concurrency` (lowest, highest) workers, and become requests of as
    many rows as the model takes. `on_error`: the run fails with the first row that the model refuses, such rows are dropped and
    counted in the log, or kept, with the reason in the column `error` and nulls as outputs. Raises InvalidArgument."""
    if on_error not in ON_ERROR:
        raise InvalidArgument(f"tpy.ray.predict: expected on_error to be one of {', '.join(ON_ERROR)}, got '{on_error}'")
    low, high = concurrency
    if not 1 <= low <= high:
        raise InvalidArgument(f"tpy.ray.predict: expected concurrency as (lowest, highest) from 1 on, got {concurrency}")
    named = {"repository": repository, "model": model, "columns": dict(columns or {}), "on_error": on_error, "flags": flags}
    return dataset.map_batches(
        Predictor,
        fn_constructor_kwargs=named,
        batch_size=batch_size,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(min_size=low, max_size=high),
        num_cpus=cpus,
        num_gpus=gpus,
    )


class Predictor:
    """One worker: a server with the model, asked for one table after the other."""

    def __init__(
        self, repository: str | Sequence[str], model: str, columns: Mapping[str, str], on_error: str, flags: Mapping[str, Any]
    ) -> None:
        self._server = started(repository, model, flags)
        self._model: Model = self._server.model(model)
        self._on_error = on_error
        config = self._model.config()
        self._rows_max = config.max_batch_size
        self._outputs = {output.name: output.dims for output in config.output}
        self._columns = {each.name: columns.get(each.name, each.name) for each in config.input}
        description = self._model.description()
        self._types = {each.name: each.datatype.numpy for each in description.inputs}
        self._output_types = {each.name: each.datatype.numpy for each in description.outputs}
        self._dims = {each.name: len(each.dims) for each in config.input}
        self._pool = ThreadPoolExecutor(RAY_OFFLINE_REQUESTS_MAX)

    def __call__(self, table: Any) -> Iterator[Any]:
        """The table with the outputs, in pieces: one is put together while the model computes the next. Raises what the model
        refuses, unless it is told otherwise."""
        missing = [column for column in self._columns.values() if column not in table.column_names]
        if missing:
            raise InvalidArgument(f"model '{self._model.name}': the data has no column '{missing[0]}', only {table.column_names}")
        inputs = {name: self._tensor(name, table.column(column)) for name, column in self._columns.items()}
        size = max(self._rows_max, 1)
        answers = self._pool.map(lambda at: self._rows(inputs, at, min(at + size, len(table))), range(0, len(table), size))
        for begin in range(0, len(table), size * RAY_OFFLINE_REQUESTS_MAX):
            found = [each for answer in itertools.islice(answers, RAY_OFFLINE_REQUESTS_MAX) for each in answer]
            yield self._with_outputs(table.slice(begin, sum(each.rows for each in found)), found)

    def _with_outputs(self, table: Any, found: list[_Answer]) -> Any:
        failed = any(each.error for each in found)
        if failed and self._on_error == "drop":
            good = [each.error is None for each in found for _ in range(each.rows)]
            _log.warning("%(count)d rows were dropped", {"count": good.count(False)})
            table, found = table.filter(pa.array(good)), [each for each in found if each.error is None]
        for name, dims in self._outputs.items():
            dtype = self._output_types[name]
            parts = [column_of(None if each.error else each.outputs[name], each.rows, dims, dtype) for each in found]
            kind = None if parts else column_of(None, 0, dims, dtype).type
            table = table.append_column(name, pa.chunked_array(parts, kind))
        if self._on_error == "column":
            texts = [None if each.error is None else each.error.message for each in found for _ in range(each.rows)]
            table = table.append_column(ERROR_COLUMN, pa.array(texts, pa.string()))
        return table

    def _tensor(self, name: str, column: Any) -> Array:
        array = fitted(array_of(column, self._columns[name]), self._types[name], self._columns[name])
        return array.reshape(len(array), 1) if array.ndim == 1 and self._dims[name] == 1 else array

    def _rows(self, inputs: Mapping[str, Array], begin: int, end: int) -> list[_Answer]:
        """The outputs of these rows; where the model refuses them, those or the error of each."""
        try:
            if not self._rows_max:
                found = self._model.infer({name: array[begin] for name, array in inputs.items()})
                return [_Answer(1, {name: found[name][np.newaxis] for name in self._outputs})]
            return [_Answer(end - begin, self._model.infer({name: array[begin:end] for name, array in inputs.items()}))]
        except TpyError as error:
            if self._on_error == "fail":
                raise
            if end - begin == 1:
                return [_Answer(1, {}, error.with_traceback(None))]
        return [answer for at in range(begin, end) for answer in self._rows(inputs, at, at + 1)]


def started(repository: str | Sequence[str], model: str, flags: Mapping[str, Any]) -> Server:
    """A server with the model. Python models run in this process, so that no row crosses to another one, unless something says
    otherwise; Ray replaces a worker that crashes. Models that cannot, and models of several instances, which compute at the same
    time, have processes."""
    given = flags.get("backend_config", ())
    settings = (given,) if isinstance(given, str) else tuple(given)
    if not any(each.startswith(_ISOLATION) for each in settings):
        in_thread = Server(repository, load_model=(model,), **{**flags, "backend_config": (*settings, f"{_ISOLATION}thread")})
        try:
            in_thread.start()
        except TpyError as error:
            _log.info("Python models get processes: %(error)s", {"error": error.message})
        else:
            if not _has_parallel_instances(in_thread):
                return in_thread
            in_thread.stop()
    return Server(repository, load_model=(model,), **flags).start()


def _has_parallel_instances(server: Server) -> bool:
    """Returns True if a Python model has several instances."""
    configs = [server.model(entry.name).config() for entry in server.index(ready_only=True)]
    return any(config.backend == "python" and sum(group.count for group in config.instance_group) > 1 for config in configs)


class _Answer(NamedTuple):
    """The outputs of some rows, by name, or the error of one."""

    rows: int
    outputs: Mapping[str, Array]
    error: TpyError | None = None


def array_of(column: Any, name: str) -> Array:
    """The values of a column of Arrow, one more dimension for each level of lists: without a copy where numbers lie in one piece.
    Raises InvalidArgument for nulls, and for lists that differ in length."""
    array = column
    if isinstance(column, pa.ChunkedArray):
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    if array.null_count:
        raise InvalidArgument(f"column '{name}': {array.null_count} of {len(array)} values are null")
    kind = array.type
    if isinstance(array, pa.ExtensionArray):  # Ray's own for tensors
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(kind):
        flat = array_of(array.flatten(), name)
        return flat.reshape(len(array), kind.list_size, *flat.shape[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = set(np.diff(array.offsets.to_numpy()).tolist())
        if len(lengths) > 1:
            text = f"its lists have {min(lengths)} to {max(lengths)} elements, a tensor has rows of one size"
            raise InvalidArgument(f"column '{name}': {text}")
        flat = array_of(array.flatten(), name)
        return flat.reshape(len(array), lengths.pop() if lengths else 0, *flat.shape[1:])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        array = array.cast(pa.large_binary())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def fitted(array: Array, wanted: np.dtype[Any], name: str) -> Array:
    """The numbers of a column in the type that the model takes. Raises InvalidArgument for whole numbers that it lacks."""
    if array.dtype == wanted or object in (array.dtype, wanted):
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
    if wanted.kind in "iub" and not bool((cast == array).all()):
        raise InvalidArgument(f"column '{name}': not all of its values of type {array.dtype} are {wanted}")
    return cast


def column_of(values: Array | None, rows: int, dims: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """The outputs of `rows` rows as an Arrow column, without a copy where it can have their memory; nulls for None. One value
    is itself, several are lists, of a fixed size where `dims` of the model's configuration say it, and numbers of several such
    dimensions are Ray's tensors, which know no null: zeros. All tables of a data set have the same type."""
    if not dtype.isbuiltin:
        dtype = np.dtype(np.float32)  # Arrow has no BF16
    shape = () if tuple(dims) == (1,) else tuple(dims)
    is_fixed = not dtype.hasobject and min(shape, default=1) > 0
    if is_fixed and len(shape) > 1:
        numbers = np.zeros((rows, *shape), dtype) if values is None else values.reshape(rows, *shape)
        return ArrowTensorArray.from_numpy(np.ascontiguousarray(numbers, dtype))
    kind = pa.binary() if dtype.hasobject else pa.from_numpy_dtype(dtype)
    if values is None:
        for _ in shape:
            kind = pa.list_(kind, shape[0] if is_fixed else -1)
        return pa.nulls(rows, kind)
    flat = values.ravel()
    column = pa.array(flat.tolist(), kind) if dtype.hasobject else pa.array(np.ascontiguousarray(flat, dtype))
    if not shape:
        return column
    if is_fixed:
        return pa.FixedSizeListArray.from_arrays(column, shape[0])
    for axis in range(values.ndim - 1, 0, -1):
        lists = math.prod(values.shape[:axis])
        column = pa.ListArray.from_arrays(pa.array(np.arange(lists + 1) * values.shape[axis], pa.int32()), column)
    return column
