"""Reads a serialized engine, and says in a sentence why one cannot be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy_backends.contents import other_contents
from tpy_backends.tensorrt.library import Library

_CONTAINER_MAGIC = b"vtrt"
_CONTAINER_SIZE = slice(16, 24)
_CONTAINER_VERSION = slice(24, 28)

_REBUILD = "build it again with the TensorRT that is to serve it"


def read_plan(path: Path, model_name: str) -> bytes:
    """The file. Raises InvalidArgument for one that is plainly not a complete engine."""
    content = path.read_bytes()
    reason = other_contents(path, "tensorrt")
    if content.startswith(_CONTAINER_MAGIC):
        size = int.from_bytes(content[_CONTAINER_SIZE], "little")
        if len(content) < size:
            reason = f"it is cut off: {len(content)} of {size} bytes"
    if reason:
        raise InvalidArgument(f"unable to load model '{model_name}', '{path.name}' is not a TensorRT engine: {reason}")
    return content


def built_by(content: bytes) -> str:
    """The version of TensorRT that built an engine, "" where the file does not say (only engines that may run with several
    versions do)."""
    if not content.startswith(_CONTAINER_MAGIC) or len(content) < _CONTAINER_VERSION.stop:
        return ""
    return ".".join(str(number) for number in content[_CONTAINER_VERSION])


def deserialize(library: Library, runtime: Any, logger: Any, content: bytes, model_name: str) -> Any:
    """Make an engine of the content of a plan, on the current device. Raises TpyError with a sentence that says why it cannot be
    used, and TensorRT's own words."""
    logger.take_errors()
    try:
        engine = runtime.deserialize_cuda_engine(content)
    except Exception as error:
        raise _failure(library, runtime, content, [str(error), *logger.take_errors()], model_name) from error
    if engine is None:
        raise _failure(library, runtime, content, logger.take_errors(), model_name)
    return engine


def _failure(library: Library, runtime: Any, content: bytes, errors: Sequence[str], model_name: str) -> TpyError:
    installed = f"{library.__name__} {library.__version__}"
    reason = next((error for error in errors if error), "TensorRT gives no reason")
    sentence, kind = explain([*errors, *_diagnostics(library, runtime, content)], installed, built_by(content))
    return kind(f"unable to create TensorRT engine for model '{model_name}': {sentence} ({reason})")


def explain(errors: Sequence[str], installed: str, built_by: str) -> tuple[str, type[TpyError]]:
    """Returns what TensorRT's errors mean, in a sentence, and the kind of error that it is."""
    text = "\n".join(errors)
    by = f" by version {built_by}" if built_by else ""
    if found := re.search(r"incompatible device, expecting compute (\S+) got compute (\S+?),", text):
        return (
            f"it was built for a GPU of compute capability {found[2]}, and this one has {found[1]}: build it on a GPU of that "
            "kind, or "
            "with hardware compatibility"
        ), InvalidArgument
    if found := re.search(r"expecting library version (\S+) got (?:library version )?(\S+?),", text):
        return f"it was built by TensorRT {found[2]}, and {installed} is installed: {_REBUILD}", InvalidArgument
    if found := re.search(r"Current Version: (\d+), Serialized Engine Version: (\d+)", text):
        age = "an older" if int(found[2]) < int(found[1]) else "a newer"
        return f"it was built by {age} version of TensorRT than {installed}, which is installed: {_REBUILD}", InvalidArgument
    if "EngineHostCodeAllowed" in text:
        return (
            "it contains its own runtime, which is code: allow that with --backend-config=tensorrt,version-compatible=true"
        ), InvalidArgument
    if found := re.search(r"find plugin:? (\S+?),? version", text):
        return (f"it needs the plugin {found[1]}: name its library with --backend-config=tensorrt,plugins=PATH"), InvalidArgument
    if re.search(r"out ?of ?memory|INSUFFICIENT_GPU_MEMORY", text, re.IGNORECASE):
        return "its weights do not fit into the memory that the GPU has left", Unavailable
    if re.search(r"CUDA driver version is insufficient|OLD_CUDA_DRIVER|no CUDA-capable device|cudaError 35", text):
        return f"{installed} finds no GPU with a driver that is new enough", Unavailable
    if "UNSUPPORTED_CC" in text:
        return f"it was not built{by} for GPUs of this kind: name this one's compute capability when it is built", InvalidArgument
    if "VERSION_MISMATCH" in text:
        return f"it was built{by or ' by another version'}, and {installed} is installed: {_REBUILD}", InvalidArgument
    if re.search(r"[Mm]agic ?[Tt]ag|MALFORMED_ENGINE|minBufferSize", text):
        return f"the file is not a TensorRT engine, or not for {installed.split()[0]}", InvalidArgument
    if built_by and built_by != installed.split()[-1]:
        return f"it was built by version {built_by}, and {installed} is installed: {_REBUILD}", InvalidArgument
    return f"{installed} refuses it", Internal


def _diagnostics(library: Library, runtime: Any, content: bytes) -> list[str]:
    """Returns the faults that TensorRT finds in the head of an engine, by the names of its flags; versions before 10.13 do not
    look."""
    if not hasattr(runtime, "get_engine_validity"):
        return []
    try:
        _, flags = runtime.get_engine_validity(content[: runtime.engine_header_size])
    except Exception:  # a diagnosis, of something that has failed already
        return []
    diagnostics = library.EngineInvalidityDiagnostics
    return [name for name in FLAGS if hasattr(diagnostics, name) and int(flags) & int(getattr(diagnostics, name).value)]


FLAGS = ("OLD_CUDA_DRIVER", "VERSION_MISMATCH", "UNSUPPORTED_CC", "INSUFFICIENT_GPU_MEMORY", "MALFORMED_ENGINE")
