"""The tensorflow backend, and a loaded version: its sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tpy.backend import BackendCapabilities, BackendSettings, HostPolicy, InstancePlacement, ModelContext, ModelInstance, bound
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal
from tpy.limits import TENSORFLOW_CALLABLES_MAX
from tpy_backends.file_backend import FileBackend, model_path
from tpy_backends.named_tensors import Array, named_instance
from tpy_backends.parameter_values import operator_libraries
from tpy_backends.signature import Signature
from tpy_backends.tensorflow.files import meta_graph, signature_of
from tpy_backends.tensorflow.graph import LoadedGraph, text_of
from tpy_backends.tensorflow.settings import GRAPHDEF, TensorFlowConfig, backend_config, model_settings
from tpy_backends.validation import validate

_Run = Callable[..., list[Array]]
_FetchKey = tuple[tuple[str, ...], tuple[str, ...]]


class _SessionProgram:
    """A `NamedProgram`, used in one thread. For each choice of outputs there is a callable, which costs a quarter of
    `Session.run`."""

    def __init__(self, graph: LoadedGraph, give_back: Callable[[], object]) -> None:
        """`give_back` is called when it is closed."""
        self._graph = graph
        self._give_back = give_back
        self._callables: dict[_FetchKey, _Run] = {}

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

    def _callable(self, key: _FetchKey) -> _Run:
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


SAVEDMODEL_FOLDER = "model.savedmodel"
GRAPHDEF_FILE = "model.graphdef"

_Key = tuple[InstanceKind, int, HostPolicy]


class _Shared:
    """A session, and the number of instances that have it."""

    def __init__(self, graph: LoadedGraph) -> None:
        self.graph = graph
        self.users = 0


def _key(placement: InstancePlacement) -> _Key:
    return placement.kind, placement.device_id, placement.host


class TensorFlowModel:
    """A `LoadedModel`. Instances on a device share a session, whose runs go side by side: weights are in memory once.
    MAX_SESSION_SHARE_COUNT says how many may; Triton's default is one."""

    def __init__(self, context: ModelContext, backend: TensorFlowConfig) -> None:
        """Loads nothing yet. Raises InvalidArgument for a wrong parameter, Unavailable for a missing file."""
        self._context = context
        self._backend = backend
        self._settings = model_settings(context.config)
        names = (SAVEDMODEL_FOLDER, GRAPHDEF_FILE)
        self._path = model_path(context, names[::-1] if context.config.platform == GRAPHDEF else names)
        self._lock = threading.Lock()
        self._shared: dict[_Key, list[_Shared]] = {}

    def signature(self) -> Signature:
        """That of a SavedModel, which is read without its weights; of a frozen graph's placeholders and ends. Raises TpyError."""
        name = self._context.config.name
        if self._path.is_dir():
            return signature_of(meta_graph(self._path, name, self._settings), name, self._settings)[0]
        graph = self.load(InstancePlacement(name=name, kind=InstanceKind.KIND_CPU))
        graph.close()
        return graph.signature

    def prepare(self) -> None:
        """Load the first instance's session, so that a broken model fails here. Raises TpyError."""
        self.graph(self._first_placement(), take=False)

    def graph(self, placement: InstancePlacement, *, take: bool = True) -> LoadedGraph:
        """The session for this instance, validated against the configuration, to be given back (`give_back`); `take` False: one
        that an instance will have. Raises TpyError."""
        key = _key(placement)
        share_max = self._settings.session_share_max
        with self._lock:
            sessions = self._shared.setdefault(key, [])
            found = next((each for each in sessions if not share_max or each.users < share_max), None)
            if found is None:
                graph = self.load(placement)
                try:
                    validate(self._context.config, graph.signature)
                except Exception:
                    graph.close()
                    raise
                found = _Shared(graph)
                sessions.append(found)
            found.users += take
            return found.graph

    def give_back(self, placement: InstancePlacement, graph: LoadedGraph) -> None:
        """An instance has ended. The last session of a device stays for the next one, until the model is unloaded."""
        with self._lock:
            sessions = self._shared.get(_key(placement), [])
            found = next((each for each in sessions if each.graph is graph), None)
            if found is None:
                return  # the model was unloaded
            found.users -= 1
            if not found.users and len(sessions) > 1:
                sessions.remove(found)
                graph.close()

    def load(self, placement: InstancePlacement) -> LoadedGraph:
        """A new session for the caller. Raises TpyError."""
        config = self._context.config
        self._context.log("verbose", f"opening '{self._path}' for model '{config.name}' ({placement.kind.name})")
        with bound(placement.host):
            return LoadedGraph(
                self._path,
                self._context,
                self._settings.within(placement.host.cpu_cores),
                self._backend,
                placement,
                operator_libraries(self._context),
            )

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Raises TpyError."""
        graph = self.graph(placement)
        program = _SessionProgram(graph, lambda: self.give_back(placement, graph))
        return named_instance(program, graph.signature, self._context.config)

    def unload(self) -> None:
        """Close all sessions."""
        with self._lock:
            for each in (each for sessions in self._shared.values() for each in sessions):
                each.graph.close()
            self._shared.clear()

    def _first_placement(self) -> InstancePlacement:
        anywhere = InstancePlacement(name=self._context.name, kind=InstanceKind.KIND_CPU)
        return next(iter(self._context.placements), anywhere)


_INSTANCES_ON_CPU = 2
"""Triton's default count for TensorFlow models on a CPU."""


def tensorflow_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    config = backend_config(settings.config)
    tf.get_logger().setLevel("ERROR")  # TensorFlow warns about its older interfaces
    devices = {InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}
    if tf.config.list_physical_devices("GPU"):
        devices.add(InstanceKind.KIND_GPU)
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename=SAVEDMODEL_FOLDER,
        devices=frozenset(devices),
        default_count=_INSTANCES_ON_CPU,
        implicit_state=True,
        ragged=True,
        batch_io=True,
        version=tf.__version__,
    )
    return FileBackend(
        capabilities,
        lambda context: TensorFlowModel(context, config),
        default_max_batch_size=config.default_max_batch_size,
    )
