"""Waiting for a fact that only another process knows: ask it again until it says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tests.pace import with_patience

T = TypeVar("T")

_PAUSE_S = 0.02
"""Between two questions: two cores also have to do what is waited for."""


def wait_until(ask: Callable[[], T], *, within_s: float = 30.0) -> T:
    """The first answer of `ask` that is true. Raises TimeoutError with the last answer. `within_s` is for an idle machine."""
    began_s = time.monotonic()
    pause = threading.Event()
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() - began_s > within_s and time.monotonic() - began_s > with_patience(within_s):
            raise TimeoutError(f"not so within {within_s} s; the last answer was {answer!r}")
        pause.wait(_PAUSE_S)
