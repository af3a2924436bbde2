"""Imports model.py as Triton does: as a module of a package that is its folder, with that folder and its parent on sys.path.

No bytecode is written: a `__pycache__` in a repository that is watched would look like a change of the model.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import pb_utils
from ..pb_utils.failures import ModelFailure, describe

UTILITIES = "triton_python_backend_utils"

_importing = threading.Lock()


class ModelSource(NamedTuple):
    """The place of a model's code. `package` names the package to import it under, `label` the module as messages name it."""

    path: str
    package: str
    label: str
    search_path: Sequence[str]


_FILES_NAMED_MAX = 8
_NAMES_SHOWN_MAX = 8


def install_utilities() -> None:
    """Make `import triton_python_backend_utils` give ours, in this process."""
    sys.modules[UTILITIES] = pb_utils


def load_class(source: ModelSource) -> type[Any]:
    """Import the model and return its TritonPythonModel. Raises ModelFailure with type, text and place of what went wrong."""
    folder, filename = os.path.split(source.path)
    stem, extension = os.path.splitext(filename)
    if extension != ".py":
        raise ModelFailure(f"Model name must end with '.py'. Model name is \"{filename}\".")
    if not os.path.isfile(source.path):
        found = ", ".join(sorted(os.listdir(folder))[:_FILES_NAMED_MAX]) if os.path.isdir(folder) else ""
        raise ModelFailure(f"Python model file not found in '{source.path}'; the folder holds {found or 'nothing'}")
    install_utilities()
    package = types.ModuleType(source.package)
    package.__path__ = [folder]
    with _importing:
        sys.path.extend(entry for entry in source.search_path if entry not in sys.path)
        writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        sys.modules[source.package] = package
        name = f"{source.package}.{stem}"
        try:
            # The builtin, not importlib.import_module: its frames are the ones that messages are known to show.
            __import__(name)
        except BaseException as error:
            raise ModelFailure(describe(error, sys._getframe()) + _next_step(error)) from error
        finally:
            sys.dont_write_bytecode = writes_bytecode
    model_class = getattr(sys.modules[name], "TritonPythonModel", None)
    if model_class is None:
        raise ModelFailure(
            f"AttributeError: module '{source.label}' has no attribute 'TritonPythonModel'; expected a class of that name, with "
            f"a method execute, in '{source.path}', which defines {_defined(sys.modules[name])}"
        )
    if not isinstance(model_class, type):
        raise ModelFailure(f"TypeError: TritonPythonModel of module '{source.label}' is not a class")
    return model_class


def _next_step(error: BaseException) -> str:
    """Returns where a module that is missing can be installed, as a last line; nothing for any other error."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    return (
        f"\nInstall it for {sys.executable}, which runs this model, or name an environment that has it in the parameter "
        "EXECUTION_ENV_PATH of the model's config.pbtxt\n"
    )


def _defined(module: types.ModuleType) -> str:
    """Returns the public names of a module, some of them."""
    names = sorted(name for name in vars(module) if not name.startswith("_"))
    return ", ".join(names[:_NAMES_SHOWN_MAX]) or "nothing"


def forget(source: ModelSource) -> None:
    """Undo `load_class` in a process that lives on: its modules and search path, so that a later load reads the files anew."""
    folders = tuple(os.path.join(entry, "") for entry in source.search_path)
    with _importing:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            belongs = name == source.package or name.startswith(source.package + ".")
            if belongs or (isinstance(file, str) and file.startswith(folders)):
                del sys.modules[name]
        for entry in source.search_path:
            if entry in sys.path:
                sys.path.remove(entry)
