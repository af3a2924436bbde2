"""The litert backend, and its loaded models."""

from __future__ import annotations

import threading

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, ModelContext, ModelInstance, bound
from tpy.config.model_config import InstanceKind
from tpy.errors import InvalidArgument
from tpy_backends.completion import default_max_batch_size
from tpy_backends.file_backend import FileBackend, model_file
from tpy_backends.litert.interpreter import VERSION, LoadedFile
from tpy_backends.named_tensors import named_instance
from tpy_backends.parameter_values import parse_integer
from tpy_backends.signature import Signature
from tpy_backends.validation import validate, warn_of_outputs_left_out

DEFAULT_FILENAME = "model.tflite"
_THREADS = "tflite_num_threads"


class LiteRtModel:
    """A `LoadedModel`: an interpreter per instance, never used by two threads at once."""

    def __init__(self, context: ModelContext) -> None:
        """Raises TpyError."""
        config = context.config
        self._context = context
        self._path = model_file(context, (DEFAULT_FILENAME,))
        self._threads = parse_integer(config.parameter(_THREADS), bits=32) if _THREADS in config.parameters else None
        if self._threads is not None and self._threads < 1:
            raise InvalidArgument(
                f"parameter '{_THREADS}' of model '{config.name}' must be a positive number, got {self._threads}"
            )
        self._lock = threading.Lock()
        self._first: LoadedFile | None = None

    def open(self, cpu_cores: tuple[int, ...] = ()) -> LoadedFile:
        """An interpreter for an instance that is bound to these cores. Raises TpyError."""
        config = self._context.config
        threads = self._threads or len(cpu_cores) or None
        return LoadedFile(self._path, config, signature=config.parameter("TF_SIGNATURE_DEF", ""), threads=threads)

    def signature(self) -> Signature:
        """As the file has it. Raises TpyError."""
        return self.open().signature

    def prepare(self) -> None:
        """Make the first instance's interpreter, so that a broken model fails here. Raises TpyError."""
        file = self.open()
        validate(self._context.config, file.signature)
        warn_of_outputs_left_out(self._context, file.signature)
        self._first = file

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """Raises TpyError."""
        file = None
        if not placement.host.cpu_cores:
            with self._lock:
                file, self._first = self._first, None
        if file is None:
            with bound(placement.host):
                file = self.open(tuple(placement.host.cpu_cores))
        return named_instance(file, file.signature, self._context.config, any_thread=True)

    def unload(self) -> None:
        """Let go of an interpreter that no instance has taken."""
        self._first = None


def litert_backend(settings: BackendSettings) -> FileBackend:
    """Raises InvalidArgument for a bad `--backend-config` value."""
    capabilities = BackendCapabilities(
        name=settings.name,
        default_model_filename=DEFAULT_FILENAME,
        devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
        implicit_state=True,
        ragged=True,
        batch_io=True,
        version=VERSION,
    )
    return FileBackend(capabilities, LiteRtModel, default_max_batch_size=default_max_batch_size(settings.config))
