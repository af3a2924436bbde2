"""Loads the C library of the host into this process, and plug-ins that call it."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import struct
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from tpy.errors import Internal, InvalidArgument, NotFound, Unsupported
from tpy_native import building
from tpy_native.surroundings import code_of, error_of, surroundings

_MACHINES: Final = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le", 22: "s390x"}
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_SHARED_OBJECT: Final = 3
_SECTION_DYNAMIC: Final = 6
_TAG_NEEDED: Final = 1


class _SharedLibrary(msgspec.Struct, frozen=True):
    """The facts of a file. `needed` are the names of libraries that it wants to be loaded with it."""

    needed: tuple[str, ...]


def read(path: Path, kind: str = "backend") -> _SharedLibrary:
    """Raises InvalidArgument for a file that is not a shared library for this kind of machine, NotFound for a missing file.
    `kind` is that of the plug-in."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotFound(f"unable to load {kind} library '{path}': {error.strerror}") from error
    if content[:4] != b"\x7fELF":
        raise InvalidArgument(f"unable to load {kind} library '{path}': it is not a shared library (ELF file)")
    if content[4:6] != b"\x02\x01":
        raise InvalidArgument(f"unable to load {kind} library '{path}': it is not for a little-endian machine with 64 bits")
    try:
        return _read(path, content, kind)
    except (struct.error, UnicodeDecodeError, ValueError):
        raise InvalidArgument(f"unable to load {kind} library '{path}': the file is cut off or damaged") from None


def _read(path: Path, content: bytes, kind: str) -> _SharedLibrary:
    header = _HEADER.unpack_from(content)
    elf_type, machine, sections_at, section_size, section_count = header[1], header[2], header[6], header[11], header[12]
    found = _MACHINES.get(machine, f"machine {machine}")
    if found != platform.machine():
        raise InvalidArgument(
            f"unable to load {kind} library '{path}': it was built for {found}, this machine is {platform.machine()}"
        )
    if elf_type != _SHARED_OBJECT:
        raise InvalidArgument(f"unable to load {kind} library '{path}': it is not a shared library")
    sections = [_SECTION.unpack_from(content, sections_at + section_size * index) for index in range(section_count)]
    needed: list[str] = []
    for section in sections:
        if section[1] == _SECTION_DYNAMIC:
            texts_at = sections[section[6]][4]
            for tag, value in _DYNAMIC.iter_unpack(content[section[4] : section[4] + section[5]]):
                if tag == _TAG_NEEDED:
                    begin = texts_at + value
                    needed.append(content[begin : content.index(b"\0", begin)].decode())
    return _SharedLibrary(tuple(needed))


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
        """Make this process one in which the plug-in can be loaded. Raises InvalidArgument for a file that is not a library for
        this kind of machine, NotFound for a missing file; both call it a library of this `kind` of plug-in.

        A plug-in may name Triton's library as one that it needs, under whatever name that had when it was packed. An empty
        library of that name is loaded first: so the loader looks no further, and finds the functions in this one.
        """
        for name in read(path, kind).needed:
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
