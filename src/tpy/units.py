"""Units. Time inside the server is integer nanoseconds; these are the only conversion factors."""

from __future__ import annotations

from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
