"""Sizes: how much memory models have taken when they were loaded, and what one is expected to take that never was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

FORMAT: Final = 1
"""Of the file. One of another number is not used."""


class KeptSize(msgspec.Struct, frozen=True):
    """A model's line in the file: its memory when it was loaded from files with this fingerprint, and the size of these."""

    fingerprint: str
    backend: str
    bytes: int
    file_bytes: int


class KeptSizes(msgspec.Struct, frozen=True):
    """The file: models by name and version."""

    format: int
    models: Mapping[str, KeptSize] = {}


class ModelFiles(msgspec.Struct, frozen=True):
    """The files of a version. Another `fingerprint`: another model."""

    fingerprint: str
    bytes: int


class Sizes:
    """Sizes by name. A measurement that is lower than the one before counts half: memory that an earlier model has left in this
    process is used again, and does not show."""

    def __init__(self, kept: Mapping[str, KeptSize]) -> None:
        self._kept = dict(kept)
        self._beside: dict[str, int] = {}  # by backend, the least that a model took beside its files
        for each in kept.values():
            self._note(each)

    def expected_bytes(self, name: str, backend: str, files: ModelFiles) -> int:
        """The bytes that were measured; for a model that never was, its files and the least that any model of its backend took
        beside them: rather too little, because a model that is thought too large is never loaded."""
        known = self._kept.get(name)
        if known is not None and known.fingerprint == files.fingerprint:
            return known.bytes
        return files.bytes + self._beside.get(backend, 0)

    def measured(self, name: str, backend: str, files: ModelFiles, size_bytes: int) -> int:
        """The model was loaded, and took so much. Returns what counts from now on: at least its files, which it maps or reads."""
        known = self._kept.get(name)
        if known is not None and known.fingerprint == files.fingerprint and size_bytes < known.bytes:
            size_bytes = (known.bytes + size_bytes) // 2
        size_bytes = max(size_bytes, files.bytes, 1)
        self._kept[name] = KeptSize(files.fingerprint, backend, size_bytes, files.bytes)
        self._note(self._kept[name])
        return size_bytes

    def kept(self) -> KeptSizes:
        """For the file."""
        return KeptSizes(FORMAT, dict(sorted(self._kept.items())))

    def _note(self, size: KeptSize) -> None:
        beside_bytes = max(0, size.bytes - size.file_bytes)
        self._beside[size.backend] = min(beside_bytes, self._beside.get(size.backend, beside_bytes))
