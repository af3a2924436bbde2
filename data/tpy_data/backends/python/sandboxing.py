"""The parameter `sandbox` of models whose instances are processes: read, checked, and made the order that a worker enters."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

import msgspec

from tpy.backend import SANDBOX, CallSink, Done, LoopCalls, ModelContext, ServerCall, ServerCalls, WaitingBatch
from tpy.config import ModelConfig
from tpy.echo import echo
from tpy.errors import InvalidArgument, Unavailable, Unsupported
from tpy.messages import InferenceRequest, LoadRequest
from tpy_data.backends.python.environment.process import SandboxOrder
from tpy_data.backends.python.worker.sandbox import missing_parts

_PATHS_MAX: Final = 64
_PATH_CHARACTERS_MAX: Final = 255
"""Of what a configuration lists: an order to a template is one datagram of 64 KiB."""

_ENVIRONMENT: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "ORT_DISABLE_TELEMETRY"}
)
_ENVIRONMENT_PREFIXES: Final = ("LC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_")
"""Variables that a worker in a sandbox gets: how libraries compute, and where they are. Keys of clouds and of restricted APIs are
in others."""

_Paths = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=_PATH_CHARACTERS_MAX)], ...], msgspec.Meta(max_length=_PATHS_MAX)
]


class SandboxSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mode` "require": a machine that lacks a part of it cannot load the model; "best-effort": that is a warning. `network` and
    `programs` allow sockets, and starting other programs. `read` and `write` are paths beside the model's own, relative ones in
    the model's folder. `environment` are variables that the worker gets besides the ones that reveal nothing about the server."""

    mode: Literal["require", "best-effort"] = "require"
    network: Literal["none", "allow"] = "none"
    programs: Literal["none", "allow"] = "none"
    read: _Paths = ()
    write: _Paths = ()
    environment: _Paths = ()


_DECODER: Final = msgspec.json.Decoder(SandboxSettings)
_EXPECTED: Final = '\'require\', \'best-effort\' or a JSON object like {"network": "none", "read": ["/data"], "write": []}'


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox for the workers of a model; `read` and `write` are absolute."""

    settings: SandboxSettings
    read: tuple[str, ...]
    write: tuple[str, ...]

    def order(self, temporary: Path) -> SandboxOrder:
        """The order for a worker with this folder for temporary files."""
        environment = {name: text for name, text in os.environ.items() if self._passes_on(name)}
        text = json.dumps(
            {
                "required": self.settings.mode == "require",
                "network": self.settings.network == "allow",
                "programs": self.settings.programs == "allow",
                "read": self.read,
                "write": self.write,
                "temporary": str(temporary),
            }
        )
        return SandboxOrder(text, environment)

    def _passes_on(self, name: str) -> bool:
        return name in _ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIXES) or name in self.settings.environment


def sandbox_of(context: ModelContext, settings: Mapping[str, str], code: Sequence[str] = ()) -> Sandbox | None:
    """The sandbox of a model, by its parameter, else its backend's settings; None: no sandbox. `code` are the paths of what
    workers run beside the interpreter and its packages.

    Raises InvalidArgument for an invalid value, Unavailable if a sandbox is required and this machine lacks a part of it; if not
    required, that is a warning."""
    config = context.config
    text, where = config.parameter(SANDBOX), f"parameter {SANDBOX} of model '{config.name}'"
    if not text:
        text, where = settings.get(SANDBOX, ""), f"--backend-config={config.backend},{SANDBOX}"
    if not text:
        return None
    read = _read(text, where)
    if missing := missing_parts():
        lacks = f"{where}: this machine lacks {', '.join(missing)}"
        if read.mode == "require":
            raise Unavailable(f"{lacks}; expected a newer kernel, or 'best-effort' to go without")
        context.log("warning", f"{lacks}; the model goes without")
    own = [os.path.realpath(folder) for folder in (context.model_directory, context.version_directory)]
    return Sandbox(
        settings=read,
        read=(*own, *(each for each in code if each), *_absolute(read.read, "read", where, context)),
        write=tuple(_absolute(read.write, "write", where, context)),
    )


def _read(text: str, where: str) -> SandboxSettings:
    if not text.lstrip().startswith("{"):
        text = json.dumps({"mode": text})
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"{where} is not a sandbox: {echo(str(error))}; expected {_EXPECTED}") from None


def _absolute(paths: Sequence[str], name: str, where: str, context: ModelContext) -> list[str]:
    """Raises InvalidArgument for a path that is not there, or is the whole disk."""
    found = []
    for text in paths:
        path = Path(context.model_directory, text)
        if ".." in PurePosixPath(text).parts or "\0" in text or not os.path.exists(path):
            raise InvalidArgument(
                f"{where}: '{echo(text)}' in '{name}' is not there; expected an absolute path, or one in the model's folder"
            )
        real = os.path.realpath(path)
        if real == "/":
            raise InvalidArgument(f"{where}: '{echo(text)}' in '{name}' is the whole disk; expected folders or files below it")
        found.append(real)
    return found


class SandboxedCalls:
    """ServerCalls of a model in a sandbox: it may ask other models, but not load any, which would be code without a sandbox."""

    def __init__(self, calls: ServerCalls) -> None:
        self._calls = calls

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ServerCall:
        """As `ServerCalls.infer`."""
        return self._calls.infer(request, sink, streams=streams, waiting=waiting)

    def load_model(self, request: LoadRequest, done: Done) -> None:
        """Refused."""
        done(Unsupported("a model in a sandbox cannot load models"))

    def unload_model(self, model_name: str, done: Done, *, unload_dependents: bool) -> None:
        """Refused."""
        done(Unsupported("a model in a sandbox cannot unload models"))

    def is_model_ready(self, model_name: str, version: int | None, answer: Callable[[bool], None]) -> None:
        """As `ServerCalls.is_model_ready`."""
        self._calls.is_model_ready(model_name, version, answer)


class _OnLoop(SandboxedCalls):
    """The same of a server whose loop reads what workers send (`LoopCalls`)."""

    def __init__(self, calls: ServerCalls, loop: LoopCalls) -> None:
        super().__init__(calls)
        self.watch = loop.watch


def calls_of(sandbox: Sandbox | None, calls: ServerCalls | None) -> ServerCalls | None:
    """The server as the model sees it."""
    if sandbox is None or calls is None:
        return calls
    return _OnLoop(calls, calls) if isinstance(calls, LoopCalls) else SandboxedCalls(calls)


def refuse_in_thread(config: ModelConfig, settings: Mapping[str, str]) -> None:
    """Raise InvalidArgument for a model in a thread of the server that is to have a sandbox."""
    if config.parameter(SANDBOX) or settings.get(SANDBOX):
        raise InvalidArgument(f"model '{config.name}': {SANDBOX} needs isolation 'process', not 'thread'")
