"""Finds the handler that a manifest names."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .context import Context
from .utils.util import list_classes_from_module

Handle = Callable[[Any, Context], Any]


def find_entry_point(handler: str, envelope: str = "") -> tuple[Handle, Callable[[Context], Any]]:
    """The function that handles batches, and the one that initializes it. `handler` is a file of the archive, perhaps with a
    function (`file.py:function`), or the name of a stock handler; `envelope` a stock envelope. Raises what importing it raises,
    ValueError for a file without a handler."""
    file, _, function = handler.partition(":")
    name = file.rpartition("/")[2]
    module = _module(name[:-3] if name.endswith(".py") else name)
    entry = getattr(module, function or "handle", None)
    if entry is not None:
        handle, initialize = entry, lambda context: entry(None, context)
    else:
        instance = _instance(module, handler)
        handle, initialize = instance.handle, instance.initialize
    if envelope:
        wrapper = importlib.import_module(f"ts.torch_handler.request_envelope.{envelope}")
        handle = list_classes_from_module(wrapper)[0](handle).handle
    return handle, initialize


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return importlib.import_module(f"ts.torch_handler.{name}")


def _instance(module: ModuleType, handler: str) -> Any:
    classes = [each for each in list_classes_from_module(module) if not inspect.isabstract(each)]
    if len(classes) != 1:
        names = ", ".join(each.__name__ for each in classes) or "none"
        raise ValueError(f"{handler}: expected a function handle, or one class, got {names}")
    instance: Any = classes[0]()
    for method in ("initialize", "handle"):
        if not hasattr(instance, method):
            raise ValueError(f"{handler}: class {classes[0].__name__} has no method {method}")
    return instance


def manifest_model(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a manifest that is about the model."""
    model = manifest.get("model")
    return model if isinstance(model, Mapping) else {}
