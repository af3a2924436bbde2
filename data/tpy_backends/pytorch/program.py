"""The seam between instances and the three kinds of file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from tpy.errors import Internal
from tpy_backends.pytorch.signature import ModuleSignature

_OPERATOR = re.compile(r"(?:Unknown builtin op: |_OpNamespace' ')(\w+)")

Values = Mapping[int, Any]
"""Tensors, lists of strings and numbers by position; an optional input that was not given is absent. A model that takes a dict of
tensors has it at position 0."""


class Program(Protocol):
    """A loaded model on one device. Where instances share one, they run it in several threads at once."""

    @property
    def signature(self) -> ModuleSignature: ...

    @property
    def writes_inputs(self) -> bool:
        """True when a run may write the tensors that it is given."""
        ...

    @property
    def keeps_outputs(self) -> bool:
        """True when a later run may write the tensors that a run gave."""
        ...

    def run(self, values: Values) -> Sequence[Any] | Mapping[str, Any]:
        """Results in order, or by key (`ModuleSignature.gives_dict`). Raises what the model raises."""
        ...


def first_line(error: BaseException) -> str:
    """The message of an exception of PyTorch's, without the addresses of its C++ stack."""
    text = str(error).partition("\nException raised from ")[0].strip()
    return text or type(error).__name__


def load_failure(model_name: str, error: Exception) -> Internal:
    """Returns the error of a program that cannot be loaded: Triton's text, and what helps where an operator or memory is missing.
    Without memory, what the allocator holds in reserve is given back."""
    text = first_line(error)
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
        text += "\nIts weights do not fit into the memory that the GPU has left: unload other models, or place it on another GPU"
    package = _OPERATOR.search(text)
    if package is not None:
        text += (
            f"\nThe operators `{package[1]}` are not there: install the Python package that has them, or name its library in "
            "model_operations { op_library_filename }"
        )
    return Internal(f"failed to load model '{model_name}': {text}")
