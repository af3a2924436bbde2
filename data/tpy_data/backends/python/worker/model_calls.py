"""Calls of model code to the server around it: requests to other models, and to load, unload and ask for models.

They go through a `CallPort`, which the running model's context names: the connection to the server in a worker, the server itself
in an in-process model.
"""

from __future__ import annotations

from typing import Any

from . import context
from .arguments import as_text, text_argument
from .failures import TritonModelException
from .pending_call import ResponseIterator, as_future, as_iterator_future
from .ports import CalledRequest, CallPort
from .response import InferenceResponse

LOADING, SERVING, FINALIZING = "initialize", "execute", "finalize"
"""The phases of a model."""

_ONLY_WHILE_SERVING = "BLS is only supported during the 'execute' function."


def require_devices() -> None:
    """Raises TritonModelException where tensors on devices cannot be passed."""
    if not _port_to_infer().has_devices:
        raise TritonModelException(
            "preferred_memory TRITONSERVER_MEMORY_GPU is not offered: there is no GPU in this server, or this model does not run "
            "in a separate process; expected TRITONSERVER_MEMORY_CPU"
        )


def execute(request: CalledRequest, *, decoupled: bool) -> InferenceResponse | ResponseIterator:
    """`InferenceRequest.exec`. Raises TritonModelException where models cannot be called."""
    port = _port_to_infer()
    if not decoupled:
        return port.infer(request, streams=False).take()[0]
    port.prepare_waiting_elsewhere()
    return ResponseIterator(port.infer(request, streams=True))


def execute_async(request: CalledRequest, *, decoupled: bool) -> Any:
    """`InferenceRequest.async_exec`: an asyncio future of what `exec` returns. The call is made at once."""
    import asyncio

    asyncio.get_running_loop()
    port = _port_to_infer()
    port.prepare_waiting_elsewhere()
    pending = port.infer(request, streams=decoupled)
    return as_iterator_future(pending) if decoupled else as_future(pending)


def load_model(model_name: str, config: str = "", files: dict[str, Any] | None = None) -> None:
    """Load or reload a model and return when it serves; the server must run with --model-control-mode=explicit.

    `config` is a configuration as JSON, in place of config.pbtxt; `files` maps "file:<version>/<name>" to contents, which make up
    the model instead of its folder. Raises TritonModelException with the reason when it does not load.
    """
    model_name = text_argument("load_model", "model_name", model_name)
    config = text_argument("load_model", "config", config)
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and file contents"
        )
    contents: dict[str, bytes] = {}
    for path, content in (files or {}).items():
        path_text = as_text(path)
        if path_text is None or not isinstance(content, (bytes, bytearray, memoryview, str)):
            raise TritonModelException(
                f"failed to load model '{model_name}', files should map paths (str) to contents (bytes), got {path!r}: "
                f"{type(content).__name__}"
            )
        contents[path_text] = content.encode() if isinstance(content, str) else bytes(content)
    port = _port("load_model()")
    if port.phase != SERVING:
        raise TritonModelException(
            f"Failed to load model: load_model() is not possible in {port.phase}(), where it could wait for itself; "
            "expected it in execute() or in a thread of the model"
        )
    try:
        port.load_model(model_name, config, contents)
    except TritonModelException as error:
        raise TritonModelException(f"Failed to load model: {error}") from None


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Stop serving a model; requests that it has are finished. Unknown models are fine. Raises TritonModelException."""
    model_name = text_argument("unload_model", "model_name", model_name)
    port = _port("unload_model()")
    try:
        port.unload_model(model_name, unload_dependents=bool(unload_dependents))
    except TritonModelException as error:
        raise TritonModelException(f"Failed to unload model: {error}") from None


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Returns True if the version ("": any) of a model would serve a request. Raises TritonModelException for an invalid
    version."""
    model_name = text_argument("is_model_ready", "model_name", model_name, "replace")
    model_version = text_argument("is_model_ready", "model_version", model_version)
    version: int | None = None
    if model_version:
        try:
            version = int(model_version)
        except ValueError:
            version = -1
        if version < 0:
            raise TritonModelException(
                "Failed to check model readiness: failed to get model version from specified version string "
                f"'{model_version}', version should be an integral value > 0"
            )
    return _port("is_model_ready()").is_model_ready(model_name, version)


def _port_to_infer() -> CallPort:
    known = context.current()
    if known is None or known.calls is None or known.calls.phase != SERVING:
        raise TritonModelException(_ONLY_WHILE_SERVING)
    return known.calls


def _port(function: str) -> CallPort:
    known = context.current()
    if known is None or known.calls is None:
        raise TritonModelException(f"{function} is possible in a served model only")
    return known.calls
