"""Runs a loaded graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tensorflow.core.protobuf import config_pb2

from tpy.errors import Internal
from tpy.limits import TENSORFLOW_CALLABLES_MAX
from tpy_data.backends.named_tensors import Array
from tpy_data.backends.tensorflow.graph import LoadedGraph, text_of

_Run = Callable[..., list[Array]]
_Key = tuple[tuple[str, ...], tuple[str, ...]]


class SessionProgram:
    """A `NamedProgram`, used in one thread. For each choice of outputs there is a callable, which costs a quarter of
    `Session.run`."""

    def __init__(self, graph: LoadedGraph, give_back: Callable[[], object]) -> None:
        """`give_back` is called when it is closed."""
        self._graph = graph
        self._give_back = give_back
        self._callables: dict[_Key, _Run] = {}

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """As `NamedProgram`."""
        try:
            return self._callable((tuple(feed), tuple(names)))(*feed.values())
        except Exception as error:
            raise Internal(f"TensorFlow execute failure: {text_of(error)}") from error

    def close(self) -> None:
        """As `NamedProgram`."""
        self._callables.clear()
        self._give_back()

    def _callable(self, key: _Key) -> _Run:
        run = self._callables.get(key)
        if run is None:
            graph = self._graph
            options = config_pb2.CallableOptions(
                feed=[graph.input_names[name] for name in key[0]], fetch=[graph.output_names[name] for name in key[1]]
            )
            run = graph.session._make_callable_from_options(options)  # what Keras runs its graphs by, too
            if len(self._callables) >= TENSORFLOW_CALLABLES_MAX:
                del self._callables[next(iter(self._callables))]
            self._callables[key] = run
        return run
