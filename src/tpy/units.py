"""Units. Time inside the server is integer nanoseconds; these are the only conversion factors."""

from __future__ import annotations

import re
from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

_SIZES: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(text: str) -> int:
    """The bytes of a size such as `1073741824`, `1GiB`, `1.5G`, `512 MiB` or `512M`: all units are powers of 1024. Raises
    ValueError for anything else, and below one byte."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = 0 if found is None else int(float(found[1]) * 2 ** _SIZES[found[2].upper()])
    if size < 1:
        raise ValueError(f"'{text}' is not a size, expected bytes or a number with KiB, MiB, GiB or TiB")
    return size


KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
