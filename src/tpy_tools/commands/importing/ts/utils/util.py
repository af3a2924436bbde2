"""Helpers of handlers: labels, classes of a module, configuration files."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

CLEANUP_REGEX = re.compile("<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
"""Tags and entities of HTML."""

_COMPILERS = frozenset(
    {
        *("eager", "aot_eager", "inductor", "nvfuser", "aot_nvfuser", "aot_cudagraphs", "ofi", "fx2trt", "onnxrt", "ipex"),
        *("torchxla_trace_once", "openvino", "tensorrt", "hpu_backend"),
    }
)


class PredictionException(Exception):
    """A handler raises it to answer the requests of its batch with a status and a message."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        self.message = message
        self.error_code = error_code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that a module defines itself, by name; of those only the subclasses of `parent_class`, where it is given."""
    own = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return own if parent_class is None else [each for each in own if issubclass(each, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """The labels in an index_to_name.json, by the number of the class; None without such a file."""
    if not os.path.isfile(mapping_file_path):
        logger.warning("%s is not there: classes are answered by their numbers", mapping_file_path)
        return None
    with open(mapping_file_path, encoding="utf-8") as file:
        mapping = json.load(file)
    if not isinstance(mapping, dict):
        raise ValueError(f"{mapping_file_path}: expected an object of classes and their labels")
    names = mapping.get("object_type_names")
    if isinstance(names, list):
        return {str(at): name for at, name in enumerate(names)}
    labels = {key: value[-1] if isinstance(value, list) else value for key, value in mapping.items()}
    for key, label in labels.items():
        if not isinstance(label, str):
            raise ValueError(f"{mapping_file_path}: the label of class {key} is neither a text nor a list of texts")
    return labels


def map_class_to_label(
    probs: Sequence[Sequence[Any]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Sequence[Sequence[Any]] | None = None,
) -> list[dict[str, Any]]:
    """For each row what belongs to each class, by its label, or its number where there are no labels."""
    if not isinstance(probs, list):
        raise TypeError("expected a list of rows")
    if mapping is not None and not isinstance(mapping, dict):
        raise TypeError("expected labels by the numbers of classes")
    classes = itertools.repeat(range(len(probs[0]))) if lbl_classes is None else lbl_classes
    return [
        {(str(each) if mapping is None else mapping[str(each)]): value for each, value in zip(row, values)}  # noqa: B905
        for row, values in zip(classes, probs)  # noqa: B905
    ]


def get_yaml_config(yaml_file_path: str) -> Any:
    """The document in a file of YAML."""
    import yaml  # type: ignore[import-untyped]  # its types are in a separate package

    with open(yaml_file_path, encoding="utf-8") as file:
        return yaml.safe_load(file)


def check_valid_pt2_backend(backend: str) -> bool:
    """Returns True for a backend of torch.compile."""
    known = backend in _COMPILERS
    if not known:
        logger.warning("%s is not a backend of torch.compile", backend)
    return known


def deprecated(
    version: object, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of functions that warn when they are called."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def warn(*args: Any, **options: Any) -> Any:
            warnings.warn(f"{function.__name__} is deprecated since {version}: {replacement}", klass, stacklevel=2)
            return function(*args, **options)

        return warn

    return decorate
