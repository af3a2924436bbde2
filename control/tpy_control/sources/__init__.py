"""Sources of models: one Protocol, implemented for disk, cloud and memory."""

from tpy_control.sources.cloud import CloudEnvironment, CloudOptions
from tpy_control.sources.disk import BACKENDS_FOLDER, DiskSource
from tpy_control.sources.memory import MemorySource
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.several import open_source

__all__ = [
    "BACKENDS_FOLDER",
    "CloudEnvironment",
    "CloudOptions",
    "DiskSource",
    "MemorySource",
    "RepositorySource",
    "open_source",
]
