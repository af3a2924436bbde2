"""Sizes: how much memory models have taken when they were loaded, and what one is expected to take that never was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

FORMAT: Final = 1
"""Of the file. One of another number is not used."""


class KeptSize(msgspec.Struct, frozen=True):
    """A model's line in the file: its memory when it was loaded from files with this fingerprint, and the size of these; `gpus`
    has its memory on GPUs, by number. None: nobody has looked, as before GPUs had budgets."""

    fingerprint: str
    backend: str
    bytes: int
    file_bytes: int
    gpus: Mapping[int, int] | None = None


class KeptSizes(msgspec.Struct, frozen=True):
    """The file: models by name and version."""

    format: int
    models: Mapping[str, KeptSize] = {}


class ModelFiles(msgspec.Struct, frozen=True):
    """The files of a version. Another `fingerprint`: another model."""

    fingerprint: str
    bytes: int


class Footprint(NamedTuple):
    """The memory of a model: bytes on the host, and by GPU."""

    host_bytes: int
    gpus: Mapping[int, int] = {}


class Measurement(NamedTuple):
    """The bytes that a load has shown: on the host, and by GPU. Those of `known` are the model's; its other GPUs have `grown` by
    so much, which may be the memory of others."""

    host_bytes: int
    known: Mapping[int, int] = {}
    grown: Mapping[int, int] = {}


class Sizes:
    """Sizes by name. A measurement that is lower than the one before counts half: memory that an earlier model has left in this
    process is used again, and does not show. `gpu_budgets` are the bytes of GPUs that have a budget."""

    def __init__(self, kept: Mapping[str, KeptSize], gpu_budgets: Mapping[int, int] = MappingProxyType({})) -> None:
        self._kept = dict(kept)
        self._gpu_budgets = gpu_budgets
        self._beside: dict[str, int] = {}  # by backend, the least that a model took beside its files
        for each in kept.values():
            self._note(each)

    def expected(self, name: str, backend: str, files: ModelFiles, gpus: Collection[int] = ()) -> Footprint:
        """The memory that was measured; for a model that never was, its files and the least that any model of its backend took
        beside them: rather too little, because a model that is thought too large is never loaded. On each of its `gpus` only
        its files are expected."""
        known = self._kept.get(name)
        if known is not None and known.fingerprint == files.fingerprint:
            return Footprint(known.bytes, dict.fromkeys(gpus, files.bytes) if known.gpus is None else known.gpus)
        return Footprint(files.bytes + self._beside.get(backend, 0), dict.fromkeys(gpus, files.bytes))

    def measured(self, name: str, backend: str, files: ModelFiles, found: Measurement) -> Footprint:
        """The model was loaded, and took so much. Returns what counts while it is: on the host at least its files, which it maps
        or reads, and so on GPUs where its memory is not known. What is remembered of growth is at most the budget of
        the GPU: others may have taken it, and a model that is thought too large is never measured again."""
        host_bytes, gpus = found.host_bytes, {**found.known, **found.grown}
        known = self._kept.get(name)
        if known is not None and known.fingerprint == files.fingerprint:
            host_bytes = _settled(known.bytes, host_bytes)
            before = known.gpus or {}
            gpus = {gpu: _settled(before.get(gpu, 0), gpus.get(gpu, 0)) for gpu in {**before, **gpus}}
        host_bytes = max(host_bytes, files.bytes, 1)
        gpus.update({gpu: max(gpus[gpu], files.bytes) for gpu in found.grown})
        capped = {gpu: min(gpus[gpu], max(self._gpu_budgets.get(gpu, gpus[gpu]), files.bytes)) for gpu in found.grown}
        self._kept[name] = KeptSize(files.fingerprint, backend, host_bytes, files.bytes, {**gpus, **capped})
        self._note(self._kept[name])
        return Footprint(host_bytes, gpus)

    def kept(self) -> KeptSizes:
        """For the file."""
        return KeptSizes(FORMAT, dict(sorted(self._kept.items())))

    def _note(self, size: KeptSize) -> None:
        beside_bytes = max(0, size.bytes - size.file_bytes)
        self._beside[size.backend] = min(beside_bytes, self._beside.get(size.backend, beside_bytes))


def _settled(known_bytes: int, found_bytes: int) -> int:
    """Returns the size that counts after another measurement."""
    return found_bytes if found_bytes >= known_bytes else (known_bytes + found_bytes) // 2
