"""Sources of models: one Protocol, implemented for disk, cloud, memory (`memory`) and several of these (`several`)."""

from tpy_control.sources.disk import BACKENDS_FOLDER, DiskSource
from tpy_control.sources.kinds import parse_address
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.remote_options import HiddenEnvironment, RemoteOptions

__all__ = [
    "BACKENDS_FOLDER",
    "DiskSource",
    "HiddenEnvironment",
    "RemoteOptions",
    "RepositorySource",
    "parse_address",
]
