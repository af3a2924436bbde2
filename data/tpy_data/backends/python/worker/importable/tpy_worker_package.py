"""Imports the worker's folder as package `tpy_python_worker`, whatever the interpreter, without having it on sys.path, where its
modules would shadow the model's."""

from __future__ import annotations

import importlib.util
import os
import sys

NAME = "tpy_python_worker"


def load() -> None:
    """Make the package importable by its name. Idempotent."""
    if NAME in sys.modules:
        return
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)
