"""Finds backends: by entry point, python-based ones by their folder, compiled ones by their library. Creates each once, on first
use."""

from __future__ import annotations

import contextlib
import difflib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from tpy.backend import SANDBOX, Backend, BackendSettings, Isolation, default_isolation, isolation_of
from tpy.config import ModelConfig
from tpy.config.model_files import ADVICE_FOR_BACKEND
from tpy.errors import InvalidArgument, Unavailable
from tpy.plugins import LIBRARIES, OLD_INSTALLATION, installed, package_of
from tpy_data.backends.creation import BackendOrigin, create_backend, load_factory

ENTRY_POINT_GROUP = "tpy.backends"
PYTHON_BACKEND = "python"
"""The backend whose factory serves python-based backends."""

_PYTHON_FILE = ".py"
"""A `runtime` that ends so is served by a Python backend within the backend, as in Triton's for PyTorch."""

Log = Callable[[str, str], None]
"""Level ("verbose", "info", "warning", "error") and message; any thread."""


class AvailableBackend(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the start-up table. `path` is the folder of a python-based backend, the library of a compiled one, else
    `<distribution> <version>`."""

    name: str
    path: str
    config: Mapping[str, str]


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a backend: an entry point, and for a python-based one its folder, for a compiled one its library."""

    entry_point: metadata.EntryPoint
    directory: Path | None = None
    library: Path | None = None

    def describe(self) -> str:
        if self.library is not None:
            return str(self.library)
        if self.directory is not None:
            return str(self.directory)
        return package_of(self.entry_point) or self.entry_point.value

    @property
    def origin(self) -> BackendOrigin:
        """For whoever makes the backend."""
        return BackendOrigin(entry_point=self.entry_point.value, described=self.describe())

    @property
    def isolates_itself(self) -> bool:
        """True of Python models: their backend has its own workers."""
        return self.library is None and (self.directory is not None or self.entry_point.name == PYTHON_BACKEND)


class _Slot:
    """One backend's place: its own lock, so that a slow import holds up only callers that want that backend."""

    __slots__ = ("backend", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.backend: Backend | None = None


class BackendRegistry:
    """The backends of one server. Every method may be called from any thread.

    `backend_directory` is --backend-directory, `repository_backend_directories` are the `backends` folders of model
    repositories: in each, `<name>/libtriton_<name>.so` is a compiled backend called `<name>`, and `<name>/model.py` without it a
    python-based one. An entry point wins over a folder of the same name, an earlier folder over a later one; a model's own
    library, in its folder or its version's, and one that its `runtime` names win over them all, and any library over an entry
    point with `--backend-config=<backend>,use-library=true`. `backend_config` maps a backend to its
    `--backend-config=<backend>,<key>=<value>` pairs, `global_config` holds the pairs for all backends; a backend's own pair
    wins. A python-based backend has those of `python`, as in Triton, and its own.
    """

    def __init__(
        self,
        *,
        backend_directory: Path | None = None,
        repository_backend_directories: Sequence[Path] = (),
        backend_config: Mapping[str, Mapping[str, str]] | None = None,
        global_config: Mapping[str, str] | None = None,
        log: Log = lambda level, message: None,
    ) -> None:
        self._folders = tuple(p for p in (backend_directory, *repository_backend_directories) if p is not None)
        self._backend_config = dict(backend_config or {})
        self._global_config = dict(global_config or {})
        self._log = log
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, Isolation, Path | None], _Slot] = {}
        self._closed = False
        self._entry_points = self._find_entry_points()
        self._for_libraries = self._entry_points.pop(LIBRARIES, None)
        for directory in (*self._python_based(), *(library.parent for library in self._compiled())):
            winner = self._entry_points.get(directory.name)
            if winner is not None and not self._prefers_library(directory.name):
                log("warning", f"backend folder {directory} is not used: backend '{directory.name}' is {winner.value}")

    def get(self, name: str) -> Backend:
        """The backend called `name`, created now if this is its first use (which imports it: may take seconds).

        Raises InvalidArgument for a name that no entry point and no folder has, Unavailable when it cannot be imported or
        the registry is closed, and whatever TpyError its factory raises. A failed creation is tried again by the next call.
        """
        return self._get(name, Isolation.THREAD, self._find(name))

    def for_model(self, config: ModelConfig, folders: Sequence[Path] = ()) -> Backend:
        """The backend that runs this model, as `get`, or one that runs it in worker processes, as its `isolation` says. The
        latter's package is not imported in this process. `folders` are those of the model's version and of the model.

        Raises as `get`, and InvalidArgument for an isolation that there is not, or a library that there is not.
        """
        name = config.backend
        source = self._library_of(config, folders) or self._find(name, folders)
        if source.isolates_itself or config.runtime.endswith(_PYTHON_FILE):
            return self._get(name, Isolation.THREAD, source)
        settings = self._config(name, source)
        isolation = isolation_of(config, settings) or default_isolation(load_factory(source.origin, name))
        if isolation is Isolation.THREAD and (config.parameter(SANDBOX) or settings.get(SANDBOX)):
            raise InvalidArgument(f"model '{config.name}': {SANDBOX} needs isolation 'process', not 'thread'")
        return self._get(name, isolation, source)

    def folders_of(self, backend: str) -> tuple[Path, ...]:
        """The folders that a backend of this name may have files in, whether they are there or not."""
        return tuple(folder / backend for folder in self._folders) if backend and "/" not in backend else ()

    def _get(self, name: str, isolation: Isolation, source: _Source) -> Backend:
        with self._lock:
            if self._closed:
                raise Unavailable(f"backend '{name}' cannot be used: the server is stopping")
            slot = self._slots.setdefault((name, isolation, source.library), _Slot())
        with slot.lock:
            if slot.backend is None:
                slot.backend = self._create(name, source, isolation)
                self._log("verbose", f"created backend '{name}' from {source.describe()}")
            return slot.backend

    def _library_of(self, config: ModelConfig, folders: Sequence[Path]) -> _Source | None:
        """The compiled backend that is the model's own, or that its `runtime` names. Raises InvalidArgument when that is nowhere,
        and nothing else has the backend's name."""
        runtime = config.runtime if config.runtime.endswith(LIBRARY_SUFFIX) else ""
        file = runtime or library_name(config.backend)
        if Path(file).name != file:
            raise InvalidArgument(
                f"backend library name '{file}' escapes its directory, for model '{config.name}', "
                "check model config runtime field"
            )
        everywhere = runtime or self._prefers_library(config.backend)
        searched = [*folders, *(folder / config.backend for folder in self._folders if everywhere)]
        with contextlib.suppress(OSError):  # a name that no file can have
            for folder in searched:
                if (folder / file).is_file():
                    return self._compiled_source(folder / file)
        if runtime and config.backend not in self._sources():
            places = " ".join(f"'{folder}'" for folder in searched)
            raise InvalidArgument(f"unable to find backend library '{file}' for model '{config.name}', searched: {places}")
        return None

    def available(self) -> tuple[AvailableBackend, ...]:
        """Every backend that `get` would find, sorted by name; nothing is imported."""
        return tuple(
            AvailableBackend(name=name, path=source.describe(), config=self._config(name, source))
            for name, source in sorted(self._sources().items())
        )

    def close(self) -> None:
        """Close every backend that was created; later `get` calls are refused. Idempotent.

        A backend that raises does not keep the others from closing; its error is logged.
        """
        with self._lock:
            self._closed = True
            slots = dict(self._slots)
            self._slots.clear()
        for (name, _, _), slot in slots.items():
            with slot.lock:
                backend, slot.backend = slot.backend, None
            if backend is None:
                continue
            try:
                backend.close()
            except Exception as error:
                self._log("error", f"backend '{name}' failed to close: {type(error).__name__}: {error}")

    def _find_entry_points(self) -> dict[str, metadata.EntryPoint]:
        found: dict[str, metadata.EntryPoint] = {}
        for entry_point in installed(ENTRY_POINT_GROUP):
            first = found.setdefault(entry_point.name, entry_point)
            if first.value != entry_point.value:
                self._log(
                    "warning",
                    f"backend '{entry_point.name}' is offered twice; using {first.value}, not {entry_point.value}",
                )
        return found

    def _python_based(self) -> Sequence[Path]:
        """Folders of python-based backends, in the order in which they win; none without a python backend to serve them."""
        if PYTHON_BACKEND not in self._entry_points:
            return ()
        return [directory for folder in self._folders for directory in _with_model_py(folder)]

    def _prefers_library(self, name: str) -> bool:
        """Raises InvalidArgument for a setting that is neither true nor false."""
        text = {**self._global_config, **self._backend_config.get(name, {})}.get(USE_LIBRARY, "false").lower()
        if text not in ("true", "false"):
            raise InvalidArgument(f"--backend-config={name},{USE_LIBRARY} is '{text}', expected 'true' or 'false'")
        return text == "true"

    def _compiled(self) -> list[Path]:
        """Libraries of compiled backends, in the order in which they win."""
        return [directory / library_name(directory.name) for folder in self._folders for directory in _with_library(folder)]

    def _compiled_source(self, library: Path) -> _Source:
        """Raises Unavailable where nothing is installed that loads libraries."""
        if self._for_libraries is None:
            raise Unavailable(f"no entry point '{LIBRARIES}' in '{ENTRY_POINT_GROUP}': {OLD_INSTALLATION}")
        return _Source(entry_point=self._for_libraries, directory=library.parent, library=library)

    def _sources(self) -> dict[str, _Source]:
        found = {name: _Source(entry_point=entry_point) for name, entry_point in self._entry_points.items()}
        for library in self._compiled():
            found.setdefault(library.parent.name, self._compiled_source(library))
        for directory in self._python_based():
            found.setdefault(directory.name, _Source(entry_point=self._entry_points[PYTHON_BACKEND], directory=directory))
        return found

    def _find(self, name: str, folders: Sequence[Path] = ()) -> _Source:
        """`folders` are a model's: an error names the libraries in them."""
        sources = self._sources()
        try:
            return sources[name]
        except KeyError:
            advice = _how_to_name(folders) or how_to_get(name, sources)
            raise InvalidArgument(
                f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration. "
                f"Available backends: {', '.join(sorted(sources)) or 'none'}. {advice}"
            ) from None

    def _config(self, name: str, source: _Source) -> dict[str, str]:
        is_python_based = source.directory is not None and source.library is None
        inherited = self._backend_config.get(PYTHON_BACKEND, {}) if is_python_based else {}
        return {**self._global_config, **inherited, **self._backend_config.get(name, {})}

    def _create(self, name: str, source: _Source, isolation: Isolation) -> Backend:
        settings = BackendSettings(
            name=name, config=self._config(name, source), backend_directory=source.directory, library=source.library
        )
        if isolation is Isolation.PROCESS:
            from tpy_data.backends.isolated import IsolatedBackend  # its workers are those of the Python backend

            return IsolatedBackend(source.origin, settings, self._log)
        return create_backend(source.origin, settings)


LIBRARY_SUFFIX = ".so"
USE_LIBRARY = "use-library"
"""The key of `--backend-config` by which a library wins over a backend of this server that has its name."""


def library_name(backend: str) -> str:
    """The file of a compiled backend."""
    return f"libtriton_{backend}{LIBRARY_SUFFIX}"


_TYPING_ERROR = 0.75
"""Names that are as alike as this may be meant: `pyton` and `python` are (0.91), `pytorch` and `python` are not (0.62)."""


_PART_CHARACTERS_MIN = 4
"""A part of a name this long may be meant for it: `onnx` for `onnxruntime`, `torch` for `pytorch`."""


def _how_to_name(folders: Sequence[Path]) -> str:
    """Advice for a backend whose library is with the model, under another name; "" without advice."""
    found = sorted(file.name for folder in folders for file in folder.glob(f"*{LIBRARY_SUFFIX}"))
    return f'If {found[0]}, which is there with the model, is the backend: runtime: "{found[0]}" in config.pbtxt' if found else ""


def how_to_get(name: str, available: Collection[str]) -> str:
    """The hint for a user whose backend is not installed."""
    near = difflib.get_close_matches(name, available, n=1, cutoff=_TYPING_ERROR)
    parts = [each for each in available if len(name) >= _PART_CHARACTERS_MIN and name in each]
    near = near or (parts if len(parts) == 1 else [])
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"For '{name}', install a package that offers it as an entry point '{ENTRY_POINT_GROUP}'; or {ADVICE_FOR_BACKEND}"


def _with_library(folder: Path) -> list[Path]:
    """The sub-folders of `folder` that hold a compiled backend of their name, sorted; none when `folder` cannot be read."""
    try:
        return sorted(entry for entry in folder.iterdir() if (entry / library_name(entry.name)).is_file())
    except OSError:
        return []


def _with_model_py(folder: Path) -> list[Path]:
    """The sub-folders of `folder` that hold a model.py, sorted; none when `folder` cannot be read."""
    try:
        return sorted(entry for entry in folder.iterdir() if (entry / "model.py").is_file())
    except OSError:
        return []
