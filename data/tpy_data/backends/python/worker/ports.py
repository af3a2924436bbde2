"""Protocols through which model code reaches the server: metrics, and calls of other models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .pending_call import PendingCall

CalledRequest = Any
"""A pb_utils.InferenceRequest. Its class cannot be named here, as its methods lead to these calls."""


class MetricPort(Protocol):
    """The connection of one instance to the server's metrics. Any thread. Every method raises TritonModelException with the
    reason."""

    def family(self, name: str, description: str, kind: int) -> int:
        """Hold a family; its number."""
        ...

    def metric(self, family: int, labels: dict[str, str], buckets: list[float]) -> int:
        """A series of a family; its number."""
        ...

    def change(self, metric: int, operation: str, value: float) -> None:
        """`operation` is "increment", "set" or "observe", one that the metric's kind has."""
        ...

    def observe(self, metric: int, values: list[float]) -> None:
        """Several observations of a histogram at once, all finite."""
        ...

    def value(self, metric: int) -> float:
        """The value, with every change that was made before."""
        ...

    def close_family(self, family: int) -> None:
        """Let go of a family and its series. Never raises."""
        ...

    def refusal(self, text: str) -> str:
        """`text` as an error of this instance."""
        ...


class CallPort(Protocol):
    """The connection of one model to other models and the repository. Any thread of the model."""

    phase: str

    @property
    def has_devices(self) -> bool:
        """True if tensors of devices can be passed."""
        ...

    def infer(self, request: CalledRequest, *, streams: bool) -> PendingCall:
        """Make a call; its errors come as responses."""
        ...

    def prepare_waiting_elsewhere(self) -> None:
        """The call that follows is not waited for in the thread that makes it."""
        ...

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Blocks until the model serves. Raises TritonModelException."""
        ...

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """Raises TritonModelException."""
        ...

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """Returns True if a request to it would be taken."""
        ...
