"""Loads a model into a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import rewriter_config_pb2

from tpy.backend import InstancePlacement, ModelContext, state_specs
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, TpyError
from tpy_backends.contents import contents_of
from tpy_backends.file_backend import read_whole
from tpy_backends.signature import VARIABLE, Signature, TensorInfo
from tpy_backends.tensorflow.files import Names, datatype_of, meta_graph, signature_of
from tpy_backends.tensorflow.settings import TensorFlowConfig, TensorFlowModelSettings, read_init_ops

v1 = tf.compat.v1

_INPUTS = frozenset({"Placeholder", "PlaceholderWithDefault", "PlaceholderV2"})


class LoadedGraph:
    """A graph in its own session. Runs may be called from several threads at once."""

    def __init__(
        self,
        path: Path,
        context: ModelContext,
        settings: TensorFlowModelSettings,
        backend: TensorFlowConfig,
        placement: InstancePlacement,
        libraries: Sequence[str],
    ) -> None:
        """Reads a SavedModel, or a frozen graph where `path` is a file. Raises TpyError."""
        config = context.config
        graph = tf.Graph()
        with _failures(config.name), graph.as_default(), tf.device(_device(placement)):
            for library in libraries:
                tf.load_op_library(library)
            self.session: Any = v1.Session(graph=graph, config=_session_config(settings, backend, placement))
            try:
                described = self._open(path, context, settings)
            except BaseException:
                self.session.close()
                raise
        self.signature, self.input_names, self.output_names = described

    def _open(self, path: Path, context: ModelContext, settings: TensorFlowModelSettings) -> tuple[Signature, Names, Names]:
        name = context.config.name
        if path.is_dir():
            tags = list(meta_graph(path, name, settings).meta_info_def.tags)
            described = signature_of(v1.saved_model.loader.load(self.session, tags, str(path)), name, settings)
        else:
            _import_frozen(path, name)
            described = _signature_of_graph(self.session.graph, context.config)
        self._initialize(context, settings)
        return described

    def close(self) -> None:
        """Give back threads and memory."""
        self.session.close()

    def _initialize(self, context: ModelContext, settings: TensorFlowModelSettings) -> None:
        """Run the operations that TF_INIT_OPS_FILE lists."""
        for operation in read_init_ops(context, settings.init_ops_file):
            self.session.run(operation)


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Turns what TensorFlow raises into Internal with its text."""
    try:
        yield
    except TpyError:
        raise
    except Exception as error:
        text = text_of(error)
        advice = ""
        if "Op type not registered" in text:
            advice = "; name the library that has the operator in model_operations { op_library_filename: [...] }"
        raise Internal(f"unable to load model '{name}': {text}{advice}") from error


def text_of(error: Exception) -> str:
    """The first line of TensorFlow's reason; of an error in a graph it comes behind the places in it."""
    text = str(error.message if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {error}")
    if text.startswith("Graph execution error"):
        text = text.rpartition("\nNode: ")[2].partition("\n")[2] or text
    return text.strip().partition("\n")[0] or type(error).__name__


def _device(placement: InstancePlacement) -> str | None:
    """KIND_MODEL leaves operators where the file has them."""
    if placement.kind is InstanceKind.KIND_GPU:
        return f"/GPU:{placement.device_id}"
    return None if placement.kind is InstanceKind.KIND_MODEL else "/CPU:0"


def _session_config(settings: TensorFlowModelSettings, backend: TensorFlowConfig, placement: InstancePlacement) -> Any:
    gpu = v1.GPUOptions(allow_growth=not backend.gpu_memory_fraction, per_process_gpu_memory_fraction=backend.gpu_memory_fraction)
    config = v1.ConfigProto(
        intra_op_parallelism_threads=settings.intra_threads,
        inter_op_parallelism_threads=settings.inter_threads,
        use_per_session_threads=settings.own_threads or settings.inter_threads > 0,
        allow_soft_placement=backend.soft_placement,
        gpu_options=gpu,
        device_count={"GPU": 0} if placement.kind is InstanceKind.KIND_CPU else {},
    )
    if settings.jit_level is not None:
        levels = {1: v1.OptimizerOptions.ON_1, 2: v1.OptimizerOptions.ON_2}
        config.graph_options.optimizer_options.global_jit_level = levels.get(settings.jit_level, v1.OptimizerOptions.OFF)
    if settings.mixed_precision:
        config.graph_options.rewrite_options.auto_mixed_precision = rewriter_config_pb2.RewriterConfig.ON
    return config


def _no_graph(path: Path, name: str, reason: str) -> Internal:
    advice = contents_of(path, "tensorflow")
    return Internal(f"unable to load model '{name}': '{path.name}' is not a TensorFlow graph: {reason}{advice}")


def _import_frozen(path: Path, name: str) -> None:
    definition = v1.GraphDef()
    try:
        definition.ParseFromString(read_whole(path, name))
    except DecodeError as error:
        raise _no_graph(path, name, str(error)) from error
    if not definition.node:
        raise _no_graph(path, name, "it holds no operations")
    tf.import_graph_def(definition, name="")


def _signature_of_graph(graph: Any, config: ModelConfig) -> tuple[Signature, Names, Names]:
    """The signature of a graph without one: the outputs of the configuration, and what nothing else uses; and the inputs that
    they need."""
    ends = {operation.name: operation.outputs[0] for operation in graph.get_operations() if _is_end(operation)}
    names = [*(output.name for output in config.output), *(spec.output_name for spec in state_specs(config))]
    wanted = {name: tensor for name in names if (tensor := _tensor(graph, name)) is not None}
    fed = {name.partition(":")[0]: name for name in _input_names(config)}
    inputs: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for operation in _needed([tensor.op for tensor in (wanted or ends).values()]):
        if operation.type in _INPUTS:
            optional = operation.type == "PlaceholderWithDefault" and operation.name not in fed
            (defaults if optional else inputs)[fed.get(operation.name, operation.name)] = operation.outputs[0]
    for name in fed.values():
        tensor = _tensor(graph, name)
        if tensor is not None and tensor.op.type in _INPUTS:
            inputs.setdefault(name, tensor)
    outputs = {**ends, **wanted}
    signature = Signature(
        inputs={name: _info(name, tensor) for name, tensor in inputs.items()},
        outputs={name: _info(name, tensor) for name, tensor in outputs.items()},
        initializers={name: _info(name, tensor) for name, tensor in defaults.items()},
    )
    given = {**inputs, **defaults}
    return (
        signature,
        {name: tensor.name for name, tensor in given.items()},
        {name: tensor.name for name, tensor in outputs.items()},
    )


def _input_names(config: ModelConfig) -> Iterator[str]:
    yield from (given.name for given in config.input)
    yield from (name for made in config.batch_input for name in made.target_name)
    yield from (spec.input_name for spec in state_specs(config))
    yield from (entry.name for entry in (config.sequence_batching.control_input if config.sequence_batching is not None else ()))


def _tensor(graph: Any, name: str) -> Any:
    """None when the graph has no tensor of that name; an operation's name is that of its first output."""
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError):
        return None


def _is_end(operation: Any) -> bool:
    """True for a result: nothing uses its tensors, which clients could read, and it is neither an input nor a constant."""
    return (
        bool(operation.outputs)
        and operation.outputs[0].dtype not in {tf.resource, tf.variant}
        and operation.type not in _INPUTS | {"Const"}
        and not any(tensor.consumers() for tensor in operation.outputs)
    )


def _needed(operations: Iterable[Any]) -> list[Any]:
    """The operations and all that they depend on, the first needed last."""
    seen: dict[str, Any] = {}
    left = list(operations)
    while left:
        operation = left.pop()
        if operation.name not in seen:
            seen[operation.name] = operation
            left.extend(tensor.op for tensor in operation.inputs)
            left.extend(operation.control_inputs)
    return list(seen.values())


def _info(name: str, tensor: Any) -> TensorInfo:
    shape = tensor.shape
    sizes = None if shape.rank is None else tuple(VARIABLE if size is None else size for size in shape.as_list())
    return TensorInfo(name, datatype_of(name, tensor.dtype), sizes)
