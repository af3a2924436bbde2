"""The base of envelopes."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any


class BaseEnvelope(abc.ABC):
    """Takes rows out of requests for a handler, and makes answers of what that returns."""

    def __init__(self, handle_fn: Callable[[Any, Any], Any]) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: Any, context: Any) -> Any:
        """Handle a batch."""
        self.context = context
        results = self._handle_fn(self.parse_input(data) if data else data, context)
        return self.format_output(results) if results else results

    @abc.abstractmethod
    def parse_input(self, data: Any) -> Any:
        """The rows of all requests."""

    @abc.abstractmethod
    def format_output(self, data: Any) -> Any:
        """The answers, one for each request."""
