"""What Triton's pb_utils has and this server does not offer yet: each raises an error that names it."""

from __future__ import annotations

from typing import Any, NoReturn

from .failures import TritonModelException


def refuse(what: str) -> NoReturn:
    """Raise TritonModelException: `what` is not there."""
    raise TritonModelException(f"pb_utils: {what} is not offered by this server yet")


class InferenceTrace:
    """Not offered yet."""

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse("InferenceTrace")
