"""Folders too deep for paths, and the files of overrides."""

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


def scratch_files(directory: Path) -> list[str]:
    """The files of the overrides below a scratch directory."""
    # os.walk, because folders may be removed while this looks.
    files = (Path(folder, name) for folder, _, names in os.walk(directory) for name in names)
    return sorted(str(file.relative_to(directory)).split("/", 1)[1] for file in files)
