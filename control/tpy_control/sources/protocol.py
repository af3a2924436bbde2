"""The seam between the control plane and where models are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tpy_control.core.scan import DirectoryFingerprint, ModelLocation, ModelScan


class RepositorySource(Protocol):
    """Reads the model repositories. Nothing here blocks the loop or decides anything.

    Errors: `list_models` raises Unavailable where a repository cannot be read; troubles of one model are part of its scan.
    """

    async def list_models(self) -> Sequence[ModelLocation]:
        """All model directories of all repositories, sorted. Raises Unavailable when one repository cannot be read: then
        nothing is known, and in particular not that its models are gone."""
        ...

    async def fingerprints(self, locations: Sequence[ModelLocation]) -> Sequence[DirectoryFingerprint | None]:
        """The fingerprint of each directory, without opening files; None where there is none. Equals the `fingerprint` of a scan
        taken at the same moment."""
        ...

    async def scan(self, location: ModelLocation, *, config_name: str) -> ModelScan | None:
        """Scan a directory; None where there is none. `config_name` not "" prefers `configs/<name>.pbtxt`."""
        ...

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """The MD5 of a file of the model in lower-case hex; None where there is no such file inside the model's directory."""
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` soon after something changed; runs until cancelled, or returns where the system has no change events
        (the periodic poll then finds changes)."""
        ...
