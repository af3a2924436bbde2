"""Options of repositories in the cloud."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tpy import limits
from tpy.units import NS_PER_S
from tpy_control.address import CloudAddress, models_folder
from tpy_control.sources.cloud.environment import CloudEnvironment


class CloudOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of the copies, whether they stay there (`keep`), and how many bytes they may have; `start_ns` is how long a
    repository may take to answer for the first time; `settle_ns`: a model is downloaded when its newest object is as old.
    `environment` has the credentials."""

    directory: Path
    keep: bool = False
    bytes_max: int = limits.CLOUD_CACHE_BYTES_DEFAULT
    start_ns: int = 30 * NS_PER_S
    settle_ns: int = 0
    environment: CloudEnvironment

    def folder_of(self, address: CloudAddress) -> Path:
        """The folder that stands for a repository."""
        return models_folder(self.directory, address)
