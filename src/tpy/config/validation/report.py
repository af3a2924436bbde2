"""Collects the problems of one configuration."""

from __future__ import annotations

from tpy.config.model_config import ModelConfig
from tpy.config.problem import Problem, Severity, Source


class Report:
    """The configuration under test, and its problems so far, in the order in which they were found."""

    def __init__(self, config: ModelConfig, source: Source) -> None:
        self.config = config
        self.problems: list[Problem] = []
        self._source = source

    def error(self, field: str, message: str, *, expected: str = "") -> None:
        """Note what keeps the model from being served."""
        self.problems.append(self._source.problem(field, message, expected=expected))

    def warning(self, field: str, message: str) -> None:
        """Note what does not, but is hardly meant so."""
        self.problems.append(self._source.problem(field, message, severity=Severity.WARNING))
