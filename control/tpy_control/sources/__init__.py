"""Where models come from: one Protocol, and its implementations (disk and memory; cloud stores will stand beside them)."""

from tpy_control.sources.disk import BACKENDS_FOLDER, DiskSource
from tpy_control.sources.memory import MemorySource
from tpy_control.sources.protocol import RepositorySource

__all__ = ["BACKENDS_FOLDER", "DiskSource", "MemorySource", "RepositorySource"]
