"""Bounds of tenants."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB, NS_PER_MS

TENANTS_MAX: Final = 256
"""Tenants of a file: each is a label of a few metrics, and has a line in the queue of each model that it asks."""

TENANT_WEIGHT_MAX: Final = 1_000_000
"""Of a tenant, so that a share of a queue is never rounded to nothing."""

TENANTS_FILE_BYTES_MAX: Final = 4 * MIB
"""The file of --tenants-file: a few hundred bytes a tenant, and the names of its keys."""

TENANTS_FILE_LOOK_S: Final = 10.0
"""Seconds between two looks whether that file has changed, as for certificates."""

TENANT_ROW_NS_FIRST: Final = NS_PER_MS
"""The assumed cost of a row until the first batch is over; what was charged is corrected then."""

DEVICE_DEBT_BATCHES: Final = 16
"""The bound of a tenant's time on other models of a device that is charged between two of its batches, in times of its part of
the first: a larger one divides a device closer to equal, a smaller one passes a tenant over for less time."""

TENANT_PEERS_REMEMBERED_MAX: Final = 1024
"""Addresses of which it is remembered whether they are a trusted proxy's."""
