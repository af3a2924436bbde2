"""Takes snapshots of a server over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final, cast

from tpy_tools.commands.client import Client, ClientError
from tpy_tools.commands.explain.ask import explanations
from tpy_tools.commands.top.core.metrics import ScrapedMetrics, parse
from tpy_tools.commands.top.core.rows import ModelRow, ServerSnapshot, counters_of, explained

METRICS_PORT: Final = 8002
SNAPSHOTS_WITHOUT_METRICS: Final = 10
"""The number of snapshots without the metrics page after it could not be read: a port that swallows packets costs a time-out."""


class ServerSource:
    """One server: `client` asks its HTTP port, `metrics` its metrics port. `pattern` chooses models by name."""

    def __init__(self, client: Client, metrics: Client, pattern: str = "*") -> None:
        self._client = client
        self._metrics = metrics
        self._pattern = pattern
        self._trouble = ""
        self._skip = 0

    def snapshot(self) -> ServerSnapshot:
        """The server now. Raises ClientError when it does not answer, or refuses its statistics."""
        stats = cast("dict[str, Any]", self._client.get("/v2/models/stats"))["model_stats"]
        at_s = time.monotonic()
        wanted = {entry["name"] for entry in stats if fnmatchcase(entry["name"], self._pattern)}
        states = self._states()
        if not states:
            states = {(entry["name"], entry["version"]): ("READY", "") for entry in stats}
        return ServerSnapshot(
            at_s=at_s,
            counters={(entry["name"], entry["version"]): counters_of(entry) for entry in stats if entry["name"] in wanted},
            states={key: state for key, state in states.items() if fnmatchcase(key[0], self._pattern)},
            metrics=self._page(),
            trouble=self._trouble,
        )

    def explain(self, rows: Iterable[ModelRow]) -> list[ModelRow]:
        """These rows with what the engine says; as they are where it says nothing: the model may have gone meanwhile."""
        return [self._explained(row) if row.state == "READY" else row for row in rows]

    def _explained(self, row: ModelRow) -> ModelRow:
        try:
            found = explanations(self._client, f"{row.name}/versions/{row.version}")
        except ClientError as error:
            if not error.status:
                raise
            return row
        return explained(row, found[0]) if found else row

    def _states(self) -> dict[tuple[str, str], tuple[str, str]]:
        """The states of the index; none where this caller may not see it."""
        try:
            rows = cast("list[dict[str, str]]", self._client.post("/v2/repository/index", b"{}"))
        except ClientError as error:
            if not error.status:
                raise
            return {}
        return {
            (row["name"], row.get("version", "")): (row.get("state", ""), row.get("reason", "")) for row in rows if "state" in row
        }

    def _page(self) -> ScrapedMetrics | None:
        if self._skip:
            self._skip -= 1
            return None
        try:
            page = self._metrics.text("/metrics")
        except ClientError as error:
            self._skip = SNAPSHOTS_WITHOUT_METRICS
            self._trouble = f"no metrics page: {str(error).partition(';')[0]} (--metrics-url)"
            return None
        self._trouble = ""
        return parse(page)
