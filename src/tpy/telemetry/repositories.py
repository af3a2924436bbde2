"""Families of model repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tpy.telemetry.exposition import MeasuredFamily, MetricKind, Sample
from tpy.telemetry.metrics import NO_LABELS

_REACHABLE = "tpy_repository_reachable"
_BYTES = "tpy_repository_downloaded_bytes_total"
_FILES = "tpy_repository_downloaded_files_total"
_FAILURES = "tpy_repository_failures_total"
_CACHE = "tpy_repository_cache_bytes"
_HELD = "tpy_repository_held_models"

REPOSITORY_FAMILIES: Mapping[str, MetricKind] = {
    _REACHABLE: MetricKind.GAUGE,
    _BYTES: MetricKind.COUNTER,
    _FILES: MetricKind.COUNTER,
    _FAILURES: MetricKind.COUNTER,
    _CACHE: MetricKind.GAUGE,
    _HELD: MetricKind.GAUGE,
}


class RepositoryUse(NamedTuple):
    """The counts of one repository since the start of the server, and whether it answered last time."""

    address: str
    is_reachable: bool
    bytes: int
    files: int
    failures: int


def held_models(counts: Mapping[str, int]) -> MeasuredFamily:
    """The family of models that are gone and held, by repository."""
    return MeasuredFamily(
        name=_HELD,
        kind=MetricKind.GAUGE,
        help="Models that are gone from the repository and served on, because most went at once",
        samples=tuple(Sample({"repository": name}, count) for name, count in sorted(counts.items())),
    )


def repository_families(repositories: list[RepositoryUse], cache_bytes: int) -> list[MeasuredFamily]:
    """The metric families of repositories in the cloud; `cache_bytes` are those of all local copies."""
    values: dict[str, tuple[str, list[float]]] = {
        _REACHABLE: ("1 if the repository answered last time", [float(one.is_reachable) for one in repositories]),
        _BYTES: ("Bytes downloaded from the repository", [one.bytes for one in repositories]),
        _FILES: ("Files downloaded from the repository", [one.files for one in repositories]),
        _FAILURES: ("Listings and downloads that failed", [one.failures for one in repositories]),
    }
    families = [
        MeasuredFamily(
            name=name,
            kind=REPOSITORY_FAMILIES[name],
            help=text,
            samples=tuple(Sample({"repository": one.address}, value) for one, value in zip(repositories, numbers, strict=True)),
        )
        for name, (text, numbers) in values.items()
    ]
    text = "Bytes of the local copies of models"
    return [*families, MeasuredFamily(name=_CACHE, kind=MetricKind.GAUGE, help=text, samples=(Sample(NO_LABELS, cache_bytes),))]
