"""An observer that remembers the requests of a frontend that are over."""

from __future__ import annotations

from tpy.messages import RequestRecord
from tpy.observers import RequestObserver


class Finished(RequestObserver):
    """`records` in the order of their ends."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)

    @property
    def shown(self) -> list[tuple[str, str, str, str]]:
        """Protocol, model, status and error of each."""
        return [(record.protocol, record.model, record.status, record.error) for record in self.records]
