"""Hints behind the texts of errors: which names, types and values there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpy.echo import echo, echo_list
from tpy.messages.datatypes import BY_WORD, DataType

Described = tuple[str, DataType, Sequence[int]]
"""Name, datatype and shape of a tensor; -1 is any size."""


def tensor_text(name: str, datatype: DataType, shape: Sequence[int]) -> str:
    """`X (FP32 [-1,4])`."""
    return f"{echo(name)} ({datatype.value} [{','.join(map(str, shape))}])"


def with_hint(text: str, hint: str) -> str:
    """The text of an error and a hint behind it: as a new sentence if the text ends with one."""
    if not hint:
        return text
    return f"{text} {hint[0].upper()}{hint[1:]}" if text.endswith(".") else f"{text}; {hint}"


def allowed_inputs(inputs: Iterable[Described]) -> str:
    """A hint for the refusal of an input that the model has not."""
    return f"allowed inputs are: {_listed(inputs)}"


def allowed_outputs(outputs: Iterable[Described]) -> str:
    """A hint for the refusal of an output that the model has not."""
    return f"allowed outputs are: {_listed(outputs)}"


def allowed_datatypes(given: str) -> str:
    """A hint for the refusal of a word that is not a datatype."""
    return f"'{echo(given)}' is not one of {', '.join(BY_WORD)}"


def taken_for_parameters(names: Iterable[str]) -> str:
    """A hint for the refusal of a request of `generate` that lacks inputs: members that have no input's name."""
    return f"taken for parameters: {echo_list(names, ', ')}"


def _listed(described: Iterable[Described]) -> str:
    return echo_list((tensor_text(*each) for each in described), ", ") or "none"
