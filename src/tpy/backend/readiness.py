"""Instances that know better than the server whether they are ready."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ChecksReadiness(Protocol):
    """A ModelInstance may have this as well."""

    @property
    def has_readiness_check(self) -> bool:
        """Returns True if the model has a readiness check of its own."""
        ...

    def check_ready(self, timeout_s: float) -> bool:
        """Returns True if the model would serve a request well. Called in a thread of the server's, beside `execute`, one call
        at a time.

        False, with a log line, when it cannot be known within `timeout_s`. After `close` it must still return.
        """
        ...
