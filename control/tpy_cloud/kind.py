"""The entry of all schemes of the cloud in the group `tpy.sources`. It imports no client before a source is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tpy.clock import Clock
from tpy_cloud.address import CloudAddress, parse_cloud_address
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.remote_options import RemoteOptions


class _CloudKind:
    """See SourceKind."""

    def parse(self, text: str) -> CloudAddress:
        """See SourceKind."""
        return parse_cloud_address(text)

    def open(self, addresses: Sequence[CloudAddress], options: RemoteOptions, clock: Clock) -> RepositorySource:
        """See SourceKind."""
        from tpy_cloud.source import CloudSource

        return CloudSource(addresses, options, clock)


CLOUD: Final = _CloudKind()
