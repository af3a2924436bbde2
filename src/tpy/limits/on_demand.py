"""Bounds of models that are loaded on demand."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB

ON_DEMAND_WAITING_MAX: Final = 4096
"""Requests that wait for models which are loaded on demand: as many as a busy server has open."""

ON_DEMAND_WAITING_BYTES_MAX: Final = 256 * MIB
"""The inputs of those requests together; a single one may be larger."""

ON_DEMAND_LOOK_S: Final = 0.02
"""Seconds between two looks for busy models that have become idle, while another one waits for their memory: short beside a
load."""

MODEL_SIZES_FILE_BYTES_MAX: Final = 64 * MIB
"""The file of the sizes of models: two hundred bytes a model."""
