"""Rows without an envelope."""

from __future__ import annotations

from typing import Any

from .base import BaseEnvelope


class BodyEnvelope(BaseEnvelope):
    """A row is the body of a request, or its part `data`."""

    def parse_input(self, data: Any) -> Any:
        return [row.get("data") or row.get("body") for row in data]

    def format_output(self, data: Any) -> Any:
        return data
