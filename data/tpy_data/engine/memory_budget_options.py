"""The options of a memory budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tpy.units import NS_PER_S


class MemoryBudgetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--model-memory-budget, and `gpus`, by number, --model-gpu-memory-budget. Requests wait `wait_ns_max` for a load;
    `all_on_demand` is --model-control-mode=on-demand, `file` --model-sizes-file."""

    bytes: int
    gpus: Mapping[int, int] = msgspec.field(default_factory=dict)
    wait_ns_max: int = 60 * NS_PER_S
    all_on_demand: bool = False
    file: Path | None = None
