"""The engine: loads what is desired, runs requests on it, and says what is observed.

It decides nothing about what should be served. The parts, in the order to read them: `data_plane` (its life), `runtimes`
(versions and ensembles from load to unload, the reconciler), `loading`, `instances`, `channels` (how batches reach an instance),
`requests` and `admission` (one request), `versions`, `sequences`, `ensembles`, `caching` (the request paths), `serving` (who
answers for a name), `calls` (requests of models to models), `budget` (models that are loaded when they are asked for).
"""

from tpy_data.engine.data_plane import DataPlane, DataPlaneOptions, open_data_plane
from tpy_data.engine.memory_budget_options import MemoryBudgetOptions

__all__ = ["DataPlane", "DataPlaneOptions", "MemoryBudgetOptions", "open_data_plane"]
