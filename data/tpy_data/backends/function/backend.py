"""The function backend, its models and their instances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from tpy.backend import (
    AnswerLater,
    Backend,
    BackendCapabilities,
    BackendSettings,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    ResponseSender,
    batching_of,
)
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, InvalidArgument, Unsupported
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import from_numpy

Function = Callable[..., Any]
"""Takes the inputs as keyword arguments, arrays that it must not write to; returns the outputs by name, as a sequence in the
order of the configuration, or the only one."""

FUNCTIONS: dict[str, Function] = {}
"""The functions of this process, by the key that configurations name them with."""


class Forwarder(Protocol):
    """In the place of a function: has each request answered elsewhere, and takes any number at once."""

    def forward(self, request: ExecutionRequest, sender: ResponseSender) -> None:
        """Have the request answered by its sender, later: once, unless the model is decoupled. Called on the Trio thread or an
        instance's; must neither block nor raise."""
        ...


FORWARDERS: dict[str, Forwarder] = {}
"""The forwarders of this process, by the key that configurations name them with, as functions."""

_executing = threading.local()


def executing() -> Sequence[str]:
    """Returns the keys of the functions that this thread is in, outermost first."""
    return tuple(getattr(_executing, "keys", ()))


PARAMETER = "function"
"""Of a configuration: the key of its function."""


def create(settings: BackendSettings) -> Backend:
    """The entry point. The backend has no settings."""
    return FunctionBackend(settings.name)


class FunctionBackend:
    """See the package. Needs no model file; completes nothing."""

    def __init__(self, name: str) -> None:
        self._capabilities = BackendCapabilities(
            name=name,
            default_model_filename="",
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
            decoupled=True,
        )

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> LoadedModel:
        parameter = context.config.parameters.get(PARAMETER)
        key = "" if parameter is None else parameter.string_value
        forwarder = FORWARDERS.get(key)
        if forwarder is not None:
            return ForwardingModel(forwarder)
        if context.config.decoupled:
            raise Unsupported(
                f"model '{context.name}' asks for what backend '{self._capabilities.name}' does not support: "
                "'model_transaction_policy.decoupled'"
            )
        function = FUNCTIONS.get(key)
        if function is None:
            raise InvalidArgument(
                f"model '{context.name}' is a function of a program, and this process has no such function: models of the "
                "backend 'function' are added by tpy.Server.add_model"
            )
        return FunctionModel(key, function, context.config)

    def close(self) -> None:
        pass


class ForwardingModel:
    """A loaded version whose requests are answered elsewhere."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return ForwardingInstance(self._forwarder)

    def unload(self) -> None:
        pass


class ForwardingInstance:
    """Hands requests on, and does not wait for their answers."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """The only answer of a request comes later; the answers of a decoupled model have senders already."""
        forward, later = self._forwarder.forward, []
        for request in batch.requests:
            if request.sender is None:
                later.append(AnswerLater(begin=partial(forward, request)))
            else:
                forward(request, request.sender)
        return later

    def close(self) -> None:
        pass


class FunctionModel:
    """A loaded version."""

    def __init__(self, key: str, function: Function, config: ModelConfig) -> None:
        self._key = key
        self._function = function
        self._config = config

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return FunctionInstance(self._key, self._function, self._config)

    def unload(self) -> None:
        pass


class FunctionInstance:
    """Calls the function once for each batch."""

    def __init__(self, key: str, function: Function, config: ModelConfig) -> None:
        self._key = key
        self._function = function
        self._name = config.name
        self._types = {output.name: output.data_type for output in config.output}
        batching = batching_of(config)
        self._gather, self._scatter = batching.gather, batching.scatter

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Raises whatever the function raises, and Internal for outputs that the model does not have: every request fails."""
        inputs = self._gather(batch.requests)
        batch.times.inputs_ready()
        keys = _executing.__dict__.setdefault("keys", [])
        keys.append(self._key)
        try:
            returned = self._function(**inputs)
        finally:
            keys.pop()
        batch.times.outputs_begin()
        return self._scatter(batch.requests, [self._tensor(name, value) for name, value in self._named(returned).items()])

    def close(self) -> None:
        pass

    def _named(self, returned: object) -> Mapping[str, object]:
        """Returns the values of the function by the names of the outputs."""
        names = list(self._types)
        if type(returned) is np.ndarray and len(names) == 1:
            return {names[0]: returned}
        if isinstance(returned, Mapping):
            unknown = [str(name) for name in returned if name not in self._types]
            if unknown:
                raise Internal(
                    f"the function of model '{self._name}' returned '{unknown[0]}'; its outputs are {', '.join(map(repr, names))}"
                )
            return returned
        values = list(returned) if isinstance(returned, tuple | list) and len(names) != 1 else [returned]
        if isinstance(returned, tuple) and len(names) == 1 and len(returned) == 1:
            values = [returned[0]]
        if len(values) != len(names):
            raise Internal(
                f"the function of model '{self._name}' returned {len(values)} values, expected {len(names)}: "
                f"{', '.join(map(repr, names))}"
            )
        return dict(zip(names, values, strict=True))

    def _tensor(self, name: str, value: object) -> Tensor:
        """The output, cast to its type where that loses no more than precision."""
        datatype = self._types[name]
        if value is None:
            raise self._wrong(name, "None", datatype)
        if datatype is DataType.BYTES:
            # NumPy's own strings would lose the zeros at their ends.
            array = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
            made = np.empty(array.shape, dtype=object)
            made.ravel()[:] = [self._encoded(name, each) for each in array.ravel().tolist()]
            return Tensor(name, datatype, made)
        array = np.asarray(value)
        if array.dtype != datatype.numpy:
            array = self._cast(name, array, datatype, is_array=isinstance(value, np.ndarray))
        return Tensor(name, datatype, array)

    def _encoded(self, name: str, element: object) -> bytes:
        if isinstance(element, bytes):
            return element
        if isinstance(element, str):
            try:
                return element.encode()
            except UnicodeEncodeError:
                raise self._wrong(name, "text with half of a surrogate pair, which UTF-8 does not have", DataType.BYTES) from None
        raise self._wrong(name, type(element).__name__, DataType.BYTES)

    def _cast(self, name: str, array: np.ndarray[Any, Any], datatype: DataType, *, is_array: bool) -> np.ndarray[Any, Any]:
        """Plain numbers may have any value that the type can hold."""
        target = np.dtype(datatype.numpy)
        if array.dtype.kind in "OSUc" or (is_array and not np.can_cast(array.dtype, target, "same_kind")):
            raise self._wrong(name, array.dtype if array.dtype.kind == "O" else from_numpy(array.dtype).value, datatype)
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(target)
        if target.kind in "biu" and not np.can_cast(array.dtype, target) and not np.array_equal(cast, array):
            raise self._wrong(name, "values that the type does not have", datatype)
        return cast

    def _wrong(self, name: str, found: object, expected: DataType) -> Internal:
        return Internal(f"the function of model '{self._name}' returned output '{name}' as {found}, expected {expected.value}")
