"""Sources of models: one Protocol, implemented for disk, cloud and memory."""

from tpy_control.sources.disk import BACKENDS_FOLDER, DiskSource
from tpy_control.sources.kinds import parse_address
from tpy_control.sources.memory import MemorySource
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.remote_options import HiddenEnvironment, RemoteOptions
from tpy_control.sources.several import open_source

__all__ = [
    "BACKENDS_FOLDER",
    "DiskSource",
    "HiddenEnvironment",
    "MemorySource",
    "RemoteOptions",
    "RepositorySource",
    "open_source",
    "parse_address",
]
