"""Loads the C library of the host into this process, and plug-ins that call it."""

from __future__ import annotations

import ctypes
import importlib
import os
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tpy.errors import Internal, Unsupported
from tpy_data.native import building, elf
from tpy_data.native.surroundings import code_of, error_of, surroundings

_TEXT: Final = ctypes.c_char_p
_POINTER: Final = ctypes.c_void_p
_OBJECT: Final = ctypes.py_object
_INT: Final = ctypes.c_int

_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "tpy_start": (None, (_OBJECT, _OBJECT, _OBJECT)),
    "tpy_start_batches": (_INT, (_OBJECT, _OBJECT)),
    "tpy_set_log_levels": (None, (_INT,)),
    "tpy_backend_open": (_OBJECT, (_TEXT, _TEXT, _TEXT, _TEXT)),
    "tpy_backend_attribute": (_OBJECT, (_POINTER,)),
    "tpy_backend_close": (_OBJECT, (_POINTER,)),
    "tpy_model_open": (_OBJECT, (_POINTER, _TEXT, ctypes.c_uint64, _TEXT, _TEXT, _INT, _INT, _OBJECT, _OBJECT)),
    "tpy_model_completed": (_OBJECT, (_POINTER,)),
    "tpy_model_close": (_OBJECT, (_POINTER,)),
    "tpy_instance_open": (_OBJECT, (_POINTER, _TEXT, _INT, _INT, _TEXT, _TEXT, _OBJECT, _OBJECT, _OBJECT)),
    "tpy_instance_has_ready": (_INT, (_POINTER,)),
    "tpy_instance_ready": (_OBJECT, (_POINTER,)),
    "tpy_instance_held": (_INT, (_POINTER,)),
    "tpy_instance_close": (_OBJECT, (_POINTER,)),
    "tpy_agent_open": (_OBJECT, (_TEXT,)),
    "tpy_agent_model_open": (_OBJECT, (_POINTER, _TEXT, _TEXT, _TEXT, _OBJECT)),
    "tpy_agent_model_act": (_OBJECT, (_POINTER, _INT)),
    "tpy_agent_model_location": (_OBJECT, (_POINTER,)),
    "tpy_agent_model_close": (_OBJECT, (_POINTER,)),
    "tpy_agent_close": (_OBJECT, (_POINTER,)),
    "tpy_strategy_open": (_OBJECT, (_TEXT, _TEXT, ctypes.c_uint64, _TEXT, _TEXT, _OBJECT)),
    "tpy_strategy_begin": (_OBJECT, (_POINTER,)),
    "tpy_strategy_include": (_OBJECT, (_POINTER, _OBJECT)),
    "tpy_strategy_end": (_OBJECT, (_POINTER,)),
    "tpy_strategy_close": (_OBJECT, (_POINTER,)),
    "tpy_cache_open": (_OBJECT, (_TEXT, _TEXT)),
    "tpy_cache_insert": (_OBJECT, (_POINTER, _TEXT, _OBJECT)),
    "tpy_cache_lookup": (_OBJECT, (_POINTER, _TEXT, ctypes.c_size_t)),
    "tpy_cache_close": (_OBJECT, (_POINTER,)),
    "tpy_call_answer": (None, (_POINTER, _TEXT, ctypes.c_int64, _TEXT, _OBJECT, _OBJECT, _INT, _TEXT, _INT)),
    "tpy_instance_executor": (_OBJECT, (_POINTER,)),
}


class Host:
    """The C library, loaded. One for each process: its names are global there, as plug-ins find them by name."""

    def __init__(self, folder: Path) -> None:
        """Raises Internal when it cannot be loaded."""
        try:
            self._library = ctypes.PyDLL(str(folder / building.HOST_LIBRARY), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
        except OSError as error:
            raise Internal(f"the library for compiled plug-ins cannot be loaded: {error}") from error
        self._alias = (folder / building.ALIAS_LIBRARY).read_bytes()
        self._aliases: dict[str, ctypes.CDLL] = {}
        self._has_batches = False
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        self._library.tpy_start(surroundings.log, surroundings.metric, code_of)

    def function(self, name: str) -> Any:
        """A function of the C library by its name; it returns what `answer` takes."""
        return getattr(self._library, name)

    def start_batches(self, callables: Callable[[], tuple[object, ...]]) -> None:
        """Give the C library what it makes batches and responses with. Idempotent. Raises Unsupported for a NumPy whose arrays it
        does not know."""
        with _lock:
            if not self._has_batches:
                if not self._library.tpy_start_batches(callables(), _numpy_functions()):
                    version = importlib.import_module("numpy").__version__
                    raise Unsupported(f"compiled plug-ins need NumPy 1.26 or 2, and NumPy {version} is installed")
                self._has_batches = True

    def prepare(self, path: Path, kind: str = "backend") -> None:
        """Make this process one in which the plug-in can be loaded. Raises InvalidArgument for a file that is no library of this
        machine's kind, NotFound for none, which name it a library of this `kind` of plug-in.

        A plug-in may name Triton's library as one that it needs, under whatever name that had when it was packed. An empty
        library of that name is loaded first: so the loader looks no further, and finds the functions in this one.
        """
        for name in elf.read(path, kind).needed:
            if name.startswith("libtritonserver") and name != building.HOST_LIBRARY and name not in self._aliases:
                self._aliases[name] = self._load_alias(name)

    def _load_alias(self, name: str) -> ctypes.CDLL:
        placeholder = building.ALIAS_NAME.encode()
        if len(name) > len(placeholder):
            raise Unsupported(f"a library that needs '{name}' cannot be loaded: the name is too long")
        descriptor = os.memfd_create(name)
        try:
            os.write(descriptor, self._alias.replace(placeholder, name.encode().ljust(len(placeholder), b"\0")))
            return ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=ctypes.RTLD_LOCAL | os.RTLD_NOW)
        finally:
            os.close(descriptor)


def answer(value: Any) -> Any:
    """Returns what a function of the host returned. Raises the TpyError that it stands for."""
    if type(value) is tuple:
        raise error_of(*value)
    return value


def _numpy_functions() -> object:
    """The capsule that compiled extensions take NumPy's functions from. Not every plug-in needs it: it is imported here."""
    return getattr(importlib.import_module("numpy._core._multiarray_umath"), "_ARRAY_API")  # noqa: B009  # it has no stubs


_lock: Final = threading.Lock()
_host: Host | None = None


def host() -> Host:
    """The one of this process; loaded, and built if need be, the first time. Raises as `building.library_folder` and `Host`, and
    Unsupported for an interpreter that it cannot be used with."""
    global _host
    with _lock:
        if _host is None:
            if sysconfig.get_config_var("Py_GIL_DISABLED"):
                raise Unsupported("compiled plug-ins need a Python with a global interpreter lock")
            _host = Host(building.library_folder())
        return _host
