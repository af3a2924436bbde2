"""A metrics service that knows a load."""

from __future__ import annotations

from tpy.errors import Unavailable
from tpy.messages import GpuUse, LoadReport


class Loads:
    """Implements MetricsService. `asked` are the models and versions of reports; `fails` as an engine that is gone."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[tuple[str, int | None]] = []
        self.fails = fails

    async def page(self, *, openmetrics: bool = False) -> bytes:
        return b""

    async def gpus(self) -> list[GpuUse]:
        return [
            GpuUse(id=0, uuid="GPU-a", utilization=0.5),
            GpuUse(id=1, uuid="GPU-b", memory_used_bytes=1, memory_total_bytes=2),
        ]

    async def load(self, model_name: str = "", version: int | None = None) -> LoadReport:
        self.asked.append((model_name, version))
        if self.fails:
            raise Unavailable("the engine is gone")
        return LoadReport(numbers={"application_utilization": 0.5}, named={"tpy_load": 0.25})
