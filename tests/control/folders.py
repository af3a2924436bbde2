"""Folders that no path can name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nested(folder: Path, depth: int) -> Iterator[None]:
    """So many folders in each other, called `d`; removed afterwards, as shutil, which recurses, cannot."""
    at = os.open(folder, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        at, above = os.open("d", os.O_DIRECTORY, dir_fd=at), at
        os.close(above)
    os.close(at)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", str(folder / "d")], check=True)
