"""The seam between the control plane and where models are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tpy.errors import InvalidArgument, Unsupported
from tpy.telemetry.exposition import MeasuredFamily
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation, ModelScan


class RepositorySource(Protocol):
    """Reads the model repositories. Nothing here blocks the loop or decides anything.

    Some sources serve from copies of what a repository has, which they make when a model is scanned and take back when it is not
    used any more; the methods with a body are for those.

    Errors: `list_models` raises Unavailable where a repository cannot be read; troubles of one model are part of its scan.
    """

    async def list_models(self) -> Sequence[ModelLocation]:
        """All model directories of all repositories, sorted. Raises Unavailable when one repository cannot be read: then
        nothing is known, and in particular not that its models are gone."""
        ...

    async def fingerprints(self, locations: Sequence[ModelLocation]) -> Sequence[DirectoryFingerprint | None]:
        """The fingerprint of each directory, without opening files; None for a missing directory. Equals the `fingerprint` of a
        scan taken at the same moment."""
        ...

    async def scan(self, location: ModelLocation, *, config_name: str) -> ModelScan | None:
        """Scan a directory; None if it does not exist. `config_name` not "" prefers `configs/<name>.pbtxt`."""
        ...

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """The MD5 of a file of the model in lower-case hex; None where there is no such file inside the model's directory."""
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` soon after something changed; runs until cancelled, or returns where the system has no change events
        (the periodic poll then finds changes)."""
        ...

    async def register(self, path: Path, names: Mapping[str, str]) -> None:
        """Read this folder, too, from now on; `names` are other names for models of folders in it. Raises InvalidArgument where
        it does not exist, AlreadyExists for a folder that is read already and for a name that is taken."""
        raise Unsupported("repositories cannot be registered when others are in the cloud")

    def unregister(self, path: Path) -> None:
        """Read it no more. Raises InvalidArgument for one that was not registered."""
        raise InvalidArgument(f"failed to unregister '{path}', repository not found")

    async def prefetch(self, locations: Sequence[ModelLocation]) -> None:
        """Make the copies of models that are about to be scanned; troubles are part of their scans."""
        return

    def prepared(self, directory: Path, *, is_used: bool) -> None:
        """The scan of this directory has been used, or is not going to be: note it."""
        return

    async def retain(self, is_used: Callable[[ModelLocation], bool]) -> None:
        """Take back the copies of models that are not used, nor between a scan and `prepared`."""
        return

    def families(self) -> list[MeasuredFamily]:
        """The metrics of the repositories."""
        return []

    async def aclose(self) -> None:
        """Take back all copies; nothing is asked afterwards."""
        return
