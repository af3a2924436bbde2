"""Sources of models: one Protocol, implemented for disk and memory."""

from tpy_control.sources.disk import BACKENDS_FOLDER, DiskSource
from tpy_control.sources.memory import MemorySource
from tpy_control.sources.protocol import RepositorySource

__all__ = ["BACKENDS_FOLDER", "DiskSource", "MemorySource", "RepositorySource"]
