"""A loaded version: its serialized pipeline, of which each instance makes its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tpy.backend import InstancePlacement, ModelContext, ModelInstance
from tpy.config import parse_pbtxt
from tpy.config.model_config import InstanceKind
from tpy_backends.dali.completion import validate
from tpy_backends.dali.description import PipelineDescription
from tpy_backends.dali.instance import DaliInstance
from tpy_backends.dali.pipeline import Pipeline
from tpy_backends.dali.settings import model_settings

_CONFIG_FILE = "config.pbtxt"
_ANYWHERE = InstancePlacement(name="", kind=InstanceKind.KIND_CPU)


class DaliModel:
    """A `LoadedModel`."""

    def __init__(self, context: ModelContext, serialized: bytes, unloaded: Callable[[], None] = lambda: None) -> None:
        """`unloaded` is called at the end. Raises InvalidArgument for a wrong parameter."""
        self._context = context
        self._settings = model_settings(context.config)
        self._serialized = serialized
        self._unloaded = unloaded
        self._lock = threading.Lock()
        self._first: Pipeline | None = None

    def describe(self) -> PipelineDescription:
        """The description of the pipeline, with outputs as its configuration has them split. Raises TpyError."""
        pipeline = self._pipeline(_ANYWHERE)
        try:
            return self._described(pipeline)
        finally:
            pipeline.close()

    def prepare(self) -> None:
        """Make the first instance's pipeline, so that a broken model fails here. Raises TpyError."""
        first = next(iter(self._context.placements), _ANYWHERE)
        pipeline = self._pipeline(first)
        try:
            validate(self._context.config, self._described(pipeline))
        except BaseException:
            pipeline.close()
            raise
        self._first = pipeline if first.kind is InstanceKind.KIND_CPU and not first.host.cpu_cores else None
        if self._first is None:
            pipeline.close()

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Raises TpyError."""
        pipeline = None
        if placement.kind is InstanceKind.KIND_CPU and not placement.host.cpu_cores:
            with self._lock:
                pipeline, self._first = self._first, None
        return DaliInstance(pipeline or self._pipeline(placement), self._context.config, self._settings)

    def unload(self) -> None:
        """Let go of a pipeline that no instance has taken."""
        if self._first is not None:
            self._first.close()
        self._first = None
        self._unloaded()

    def _pipeline(self, placement: InstancePlacement) -> Pipeline:
        return Pipeline(
            self._serialized,
            max_batch_size=self._context.config.max_batch_size or None,
            threads=self._settings.threads,
            device_id=placement.device_id if placement.kind is InstanceKind.KIND_GPU else None,
        )

    def _described(self, pipeline: Pipeline) -> PipelineDescription:
        description = pipeline.describe()
        names = [output.name for output in self._context.config.output]
        outputs = []
        for index, output in enumerate(description.outputs):
            splits = (names[index] if index < len(names) else output.name) in self._settings.split
            outputs.append(output.without_outer_axis() if splits else output)
        return PipelineDescription(inputs=description.inputs, outputs=tuple(outputs), max_batch_size=description.max_batch_size)


def says_no_batches(context: ModelContext) -> bool:
    """Returns whether `max_batch_size: 0` is written in the configuration. To write nothing means batches, as in Triton. One
    that came with a call and lists its tensors means what it says."""
    config, path = context.config, context.model_directory / _CONFIG_FILE
    if config.max_batch_size:
        return False
    if not path.is_file():
        return bool(config.input and config.output)
    return "max_batch_size" in parse_pbtxt(path.read_text(encoding="utf-8")).source.locations
