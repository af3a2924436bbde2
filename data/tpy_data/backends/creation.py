"""Makes a backend from its entry point, in the server or in a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from tpy.backend import Backend, BackendFactory, BackendSettings
from tpy.errors import Internal, TpyError, Unavailable

if TYPE_CHECKING:
    from tpy.backend.engine import EngineBackend


class BackendOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """`entry_point` is `<module>:<attribute>`; `described` says to people where it comes from."""

    entry_point: str
    described: str


class Needs(NamedTuple):
    """The framework that a backend runs: any one of `distributions` brings it, and an extra of tpy one of them. A backend's
    package has it as NEEDS, for `tpy doctor`. `advice` is the way to install it, where that is not an extra."""

    framework: str
    distributions: tuple[str, ...]
    extra: str = ""
    advice: str = ""

    @property
    def install(self) -> str:
        """The way to install it, for the end of a sentence."""
        return self.advice or f"tpy's extra `{self.extra}`, or `pip install {self.distributions[0]}`"


@contextmanager
def importing(needs: Needs, *, name: str, errors: tuple[type[Exception], ...] = (ImportError,)) -> Iterator[None]:
    """Imports a backend's framework. Raises Unavailable, with how to install it, for these errors of the import."""
    try:
        yield
    except errors as error:
        raise Unavailable(
            f"backend '{name}' needs {needs.framework}, which cannot be imported ({error}); install it with {needs.install}"
        ) from error


@contextmanager
def without_module(name: str) -> Iterator[None]:
    """Imports in the block do not find the module: for one that a framework uses if it is there, and can do without."""
    missing = object()
    known: object = sys.modules.get(name, missing)
    sys.modules[name] = None  # type: ignore[assignment]  # how importlib marks what cannot be imported
    try:
        yield
    finally:
        if known is missing:
            del sys.modules[name]
        else:
            sys.modules[name] = known  # type: ignore[assignment]  # the module that was there


def load_factory(origin: BackendOrigin, name: str) -> BackendFactory:
    """The factory of the backend called `name`, imported. Raises Unavailable when it cannot be imported, Internal for what else
    importing it raises."""
    try:
        factory: BackendFactory = EntryPoint(name=name, value=origin.entry_point, group="").load()
        return factory
    except ImportError as error:
        raise Unavailable(_not_imported(origin, name, error)) from error
    except Exception as error:
        raise Internal(_not_started(name, error)) from error


def create_backend(origin: BackendOrigin, settings: BackendSettings) -> Backend:
    """The backend; one of engines as a backend that serves them. Raises as `load_factory`, and what TpyError the factory
    raises."""
    factory = load_factory(origin, settings.name)
    try:
        made = factory(settings)
        if made.capabilities.engine:
            from tpy_data.backends.engines import ServedEngines  # few servers need it

            return ServedEngines(cast("EngineBackend", made))
        return made
    except TpyError:
        raise
    except ImportError as error:
        raise Unavailable(_not_imported(origin, settings.name, error)) from error
    except Exception as error:
        raise Internal(_not_started(settings.name, error)) from error


def _not_imported(origin: BackendOrigin, name: str, error: ImportError) -> str:
    return f"backend '{name}' cannot be imported: {error}. It comes from {origin.described}; install what that needs"


def _not_started(name: str, error: Exception) -> str:
    return f"backend '{name}' failed to start: {type(error).__name__}: {error}"
