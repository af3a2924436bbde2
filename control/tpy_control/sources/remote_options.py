"""Options of repositories that are not folders of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tpy import limits
from tpy.units import NS_PER_S
from tpy_control.address import RemoteAddress, models_folder


class HiddenEnvironment(Mapping[str, str]):
    """The server's environment variables, with credentials among them. Shows nothing of them where it is printed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._values = dict(environment)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"HiddenEnvironment({len(self._values)} variables)"


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of the copies, whether they stay there (`keep`), and how many bytes they may have; `start_ns` is how long a
    repository may take to answer for the first time; `settle_ns`: a model is downloaded when its newest object is as old.
    `environment` has the credentials."""

    directory: Path
    keep: bool = False
    bytes_max: int = limits.CLOUD_CACHE_BYTES_DEFAULT
    start_ns: int = 30 * NS_PER_S
    settle_ns: int = 0
    environment: HiddenEnvironment

    def folder_of(self, address: RemoteAddress) -> Path:
        """The folder that stands for a repository."""
        return models_folder(self.directory, address)
