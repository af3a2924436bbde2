"""The source of the native codec, and its digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "_codec.pyx"


def source_hash() -> str:
    """Returns a digest of the source, which the library names, so that an old build is never used with a new source."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:32]
