"""`mlserver.register` and `mlserver.log`: histograms of the metrics port, with the name and the version of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import MLServerError
from .logging import logger

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Those of Prometheus' client, which MLServer uses."""


class InvalidModelContext(MLServerError):
    """A metric outside of a model."""

    def __init__(self) -> None:
        super().__init__("mlserver.log() or mlserver.register() was called outside of a model", 500)


class Histogram:
    """A registered metric."""

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description
        self._metric: Any = None
        self._family: Any = None
        self._is_refused = False

    def observe(self, value: float, exemplar: object = None) -> None:
        """Count a value. What the server refuses, as a name that is taken for another kind, is logged once and left out."""
        if self._metric is None and not self._is_refused:
            try:
                self._metric, self._family = _context.new_histogram(self.name, self.description, _context.labels, _BUCKETS)
            except InvalidModelContext:
                raise
            except Exception:
                self._is_refused = True
                logger.warning("metric %s is left out", self.name, exc_info=True)
        if self._metric is not None:
            self._metric.observe(value)


class _Context:
    """The maker of metrics, and their labels: of the one model in this process."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.new_histogram: Callable[..., Any] = _no_model
        self.registered: dict[str, Histogram] = {}


def _no_model(*_: object) -> Any:
    raise InvalidModelContext


_context = _Context()


def set_context(name: str, version: str, new_histogram: Callable[..., Any]) -> None:
    """Metrics are those of this model from now on."""
    _context.labels = {"model_name": name, "model_version": version}
    _context.new_histogram = new_histogram


def register(name: str, description: str) -> Histogram:
    """The metric of this name; it is made on first use."""
    return _context.registered.setdefault(name, Histogram(name, description))


def log(**metrics: float) -> None:
    """Count a value of each metric."""
    for name, value in metrics.items():
        register(name, f"{name} of an MLServer model").observe(value)
