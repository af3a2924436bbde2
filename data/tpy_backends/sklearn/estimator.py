"""The sklearn backend. An estimator as a model: its inputs are columns of features, an output is what the method of its name
returns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, ModelContext, ModelInstance
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput
from tpy.errors import Internal, InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy.messages.datatypes import from_numpy
from tpy_backends.completion import default_max_batch_size
from tpy_backends.file_backend import FileBackend
from tpy_backends.named_tensors import Array, named_instance
from tpy_backends.signature import VARIABLE, Signature, TensorInfo
from tpy_backends.sklearn.files import VERSION, Trust, read_estimator, read_trust
from tpy_backends.validation import validate

INPUT: Final = "X"
TEXT_INPUT: Final = "TEXT"
"""The input of estimators that take texts: they do not say how many features they have."""

METHODS: Final = (
    "predict",
    "predict_proba",
    "transform",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "apply",
)
_COMPLETED: Final = ("predict", "predict_proba")
_BYTES = DataType.BYTES.numpy


class Estimator:
    """A `NamedProgram`, used in one thread at a time."""

    def __init__(self, estimator: Any, config: ModelConfig) -> None:
        """Calls each method on a row of zeros, to see what it returns. Raises InvalidArgument for inputs that are neither one
        matrix nor the columns by name, Unsupported for an object without methods."""
        self._methods = {name: getattr(estimator, name) for name in METHODS if hasattr(estimator, name)}
        if not self._methods:
            raise Unsupported(
                f"unable to load model '{config.name}': its file holds an object of type {type(estimator).__name__}, which has "
                f"none of the methods {', '.join(METHODS)}"
            )
        count = getattr(estimator, "n_features_in_", None)
        self._count = None if count is None else int(count)
        self._names: Sequence[str] = [str(name) for name in getattr(estimator, "feature_names_in_", ())]
        given = config.input or (_default_input(self._count),)
        self._by_column = any(tensor.name in self._names for tensor in given)
        self._frame = _frames() if self._names else None
        if self._by_column and self._frame is None:
            raise _without_pandas(config)
        inputs = {info.name: info for info in self._inputs(given, config)}
        outputs = {name: self._output(name, inputs, config) for name in self._methods}
        listed = {output.name for output in config.output}
        wanted = listed or {name for name in _COMPLETED if name in outputs} or {next(iter(outputs))}
        self.signature = Signature(inputs=inputs, outputs={name: outputs[name] for name in outputs if name in wanted or listed})

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """As `NamedProgram`."""
        try:
            rows, count = self._rows(feed)
            return [self._typed(name, self._called(name, rows, count)) for name in names]
        except Exception as error:
            raise Internal(f"scikit-learn execute failure: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """As `NamedProgram`: the estimator is all instances'."""

    def _inputs(self, given: Sequence[ModelInput], config: ModelConfig) -> list[TensorInfo]:
        """Any number type will do for a feature."""
        if self._by_column:
            missing = [name for name in self._names if name not in {tensor.name for tensor in given}]
            if missing:
                raise InvalidArgument(
                    f"unable to load model '{config.name}', its configuration lacks inputs for columns: {', '.join(missing)}"
                )
            types = {tensor.name: tensor.data_type for tensor in given}
            return [TensorInfo(name, types[name], (VARIABLE, 1)) for name in self._names]
        first = given[0]
        sizes = first.dims if config.max_batch_size > 0 or not config.input else first.dims[1:]
        return [TensorInfo(first.name, first.data_type, (VARIABLE, *(sizes if self._count is None else (self._count,))))]

    def _output(self, name: str, inputs: Mapping[str, TensorInfo], config: ModelConfig) -> TensorInfo:
        """As the method returns it; as configured where that cannot be tried, or is another type of the same kind."""
        declared = {output.name: output.data_type for output in config.output}.get(name)
        try:
            feed = {each: _zeros(info) for each, info in inputs.items()}
            made = self._called(name, *self._rows(feed))
        except Unsupported:
            raise
        except Exception as error:
            if self._frame is None and "dataframe" in str(error).lower():
                raise _without_pandas(config) from error
            if declared is None and not config.output and name in _COMPLETED:
                raise _not_tried(name, error, config, self._names) from error
            return TensorInfo(name, declared or DataType.FP64, None)
        datatype = from_numpy(made.dtype)
        if declared is not None and declared.numpy.kind == made.dtype.kind:
            datatype = declared
        return TensorInfo(name, datatype, (VARIABLE, *made.shape[1:]))

    def _rows(self, feed: Mapping[str, Array]) -> tuple[Any, int]:
        """The argument of a method, and the number of its rows."""
        if self._by_column:
            assert self._frame is not None
            columns = {name: _texts(feed[name]).reshape(-1) for name in self._names}
            return self._frame(columns), len(feed[self._names[0]])
        rows = _texts(next(iter(feed.values())))
        if rows.dtype == _BYTES and rows.shape[1:] == (1,) and self._count is None:
            return rows.reshape(-1), len(rows)
        if self._frame is not None and self._names:
            return self._frame(rows, columns=self._names), len(rows)
        return rows, len(rows)

    def _called(self, name: str, rows: Any, count: int) -> Array:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")  # without pandas
            made = self._methods[name](rows)
        if hasattr(made, "toarray"):
            made = made.toarray()
        if isinstance(made, list):
            raise Unsupported(f"{name} of a model with several outputs of classes gives {len(made)} arrays, not one tensor")
        array: Array = np.asarray(made)
        if array.dtype.kind in "OUS":
            texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1).tolist()]
            array = np.array([*texts, None], dtype=object)[:-1].reshape(array.shape)
        elif array.dtype.kind in "iu":
            array = array.astype(np.int64)
        return array.reshape(count, -1) if array.ndim == 1 else array

    def _typed(self, name: str, made: Array) -> Array:
        """As configured, where that is a type of the same kind."""
        wanted = self.signature.outputs[name].datatype.numpy
        return made.astype(wanted, copy=False) if wanted.kind == made.dtype.kind else made


def _default_input(count: int | None) -> ModelInput:
    if count is None:
        return ModelInput(name=TEXT_INPUT, data_type=DataType.BYTES, dims=(1,))
    return ModelInput(name=INPUT, data_type=DataType.FP64, dims=(count,))


def _zeros(info: TensorInfo) -> Array:
    assert info.shape is not None
    shape = tuple(1 if size == VARIABLE else size for size in info.shape)
    return np.full(shape, b"", dtype=object) if info.datatype is DataType.BYTES else np.zeros(shape, info.datatype.numpy)


def _texts(array: Array) -> Array:
    """BYTES as text; numbers as they are."""
    if array.dtype != _BYTES:
        return array
    texts = [element.decode("utf-8", "replace") for element in array.reshape(-1).tolist()]
    return np.array([*texts, None], dtype=object)[:-1].reshape(array.shape)


def _frames() -> Any:
    """The class of data frames; None without pandas."""
    try:
        import pandas
    except ImportError:
        return None
    return pandas.DataFrame


def _without_pandas(config: ModelConfig) -> Unsupported:
    return Unsupported(
        f"model '{config.name}': the estimator takes its columns by name, which needs pandas; install it with tpy's extra "
        "`pandas`, or `pip install pandas`"
    )


def _not_tried(name: str, error: Exception, config: ModelConfig, names: Sequence[str]) -> InvalidArgument:
    columns = f": one for each column, of its type ({', '.join(names)})" if names else ""
    return InvalidArgument(
        f"unable to autofill for '{config.name}': {name} does not take a row of zeros ({type(error).__name__}: "
        f"{(str(error).splitlines() or [''])[0]}); list the inputs and outputs in config.pbtxt{columns}"
    )


class SklearnModel:
    """A `LoadedModel`: one estimator, which all instances call."""

    def __init__(self, context: ModelContext, trust: Trust) -> None:
        """Reads the file. Raises TpyError."""
        self._config = context.config
        self._estimator = Estimator(read_estimator(context, trust), context.config)

    def signature(self) -> Signature:
        """As the estimator has it."""
        return self._estimator.signature

    def prepare(self) -> None:
        """As `FileModel`: checks the configuration. Raises InvalidArgument."""
        validate(self._config, self._estimator.signature)

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """As `LoadedModel`."""
        return named_instance(self._estimator, self._estimator.signature, self._config)

    def unload(self) -> None:
        """As `LoadedModel`: the estimator goes with the last instance."""
        del self._estimator


def sklearn_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    trust = read_trust(settings.config)
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename="",  # one for each way to save
        devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
        version=VERSION,
    )
    return FileBackend(
        capabilities,
        lambda context: SklearnModel(context, trust),
        default_max_batch_size=default_max_batch_size(settings.config),
    )
