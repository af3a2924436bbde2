"""Rows in the JSON of TensorFlow Serving."""

from __future__ import annotations

import base64
import json
from typing import Any

from .base import BaseEnvelope


class JSONEnvelope(BaseEnvelope):
    """Rows are the `instances` of requests; answers are their `predictions`. `{"b64": "..."}` stands for bytes."""

    def parse_input(self, data: Any) -> Any:
        requests = [(row.get("data") or row.get("body") or row)["instances"] for row in data]
        self._counts = [len(rows) for rows in requests]
        return [_decoded(row) for rows in requests for row in rows]

    def format_output(self, data: Any) -> Any:
        answers, begin = [], 0
        for count in self._counts:
            answers.append(json.dumps({"predictions": data[begin : begin + count]}))
            begin += count
        return answers


def _decoded(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    return _bytes_of(row) if list(row) == ["b64"] else {name: _bytes_of(value) for name, value in row.items()}


def _bytes_of(value: Any) -> Any:
    return base64.b64decode(value["b64"]) if isinstance(value, dict) and list(value) == ["b64"] else value
