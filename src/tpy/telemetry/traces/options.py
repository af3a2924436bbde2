"""The options of traces."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.telemetry.traces.core.setting import TraceSetting

TRITON = "triton"
OPENTELEMETRY = "opentelemetry"

OTEL_DEFAULTS = {
    "url": "http://localhost:4318/v1/traces",
    "bsp_max_export_batch_size": "512",
    "bsp_schedule_delay": "5000",
    "bsp_max_queue_size": "2048",
}
"""The settings of mode opentelemetry, delays in milliseconds."""


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`mode` is TRITON or OPENTELEMETRY. `file` is that of mode triton, "": none, and nothing is traced. `otel` are the settings
    of mode opentelemetry, `resource` the attributes of the server there."""

    mode: str = TRITON
    setting: TraceSetting = TraceSetting()
    file: str = ""
    otel: Mapping[str, str] = msgspec.field(default_factory=dict)
    resource: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def may_trace(self) -> bool:
        """True if traces have somewhere to go."""
        return self.mode == OPENTELEMETRY or bool(self.file)
