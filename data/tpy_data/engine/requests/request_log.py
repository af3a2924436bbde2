"""RequestLog: the log's line for each request, with --log-verbose=1: model, version, id, status and times."""

from __future__ import annotations

import logging

from tpy.echo import echo, request_prefix
from tpy.messages import RequestRecord
from tpy.observers import RequestObserver
from tpy.units import NS_PER_US

log = logging.getLogger(__name__)

_TEXT = "%(prefix)smodel: %(model)s, version: %(version)s, responses: %(responses)s, total: %(total_us)s us"


class RequestLog(RequestObserver):
    """Observes requests and writes their lines. Steps of ensembles have no line: they are part of another request, which has
    one."""

    @property
    def active(self) -> bool:
        """While the log is verbose."""
        return log.isEnabledFor(logging.DEBUG)

    def ended(self, record: RequestRecord) -> None:
        """Write the line."""
        if record.protocol == "step" or not self.active:
            return
        text = _TEXT
        values: dict[str, object] = {
            "prefix": request_prefix(record.id_in_logs),
            "model": echo(record.model),
            "version": -1 if record.version is None else record.version,
            "status": f"{record.status}: {record.error}" if record.error else record.status,
            "responses": record.responses,
            "total_us": (record.ended_ns - record.submitted_ns) // NS_PER_US,
        }
        if record.started_ns is not None:
            values["queue_us"] = (record.started_ns - record.submitted_ns) // NS_PER_US
            text += ", queue: %(queue_us)s us"
            parts = (("input", record.input_ns), ("infer", record.infer_ns), ("output", record.output_ns))
            for part, part_ns in parts:
                values[f"compute_{part}_us"] = part_ns // NS_PER_US
                text += f", compute {part}: %(compute_{part}_us)s us"
        log.debug(text + ", status: %(status)s", values)
