"""The engine: loads what is desired, runs requests on it, and says what is observed.

It decides nothing about what should be served. Read in this order: `data_plane` (its life), `reconciler` with `core.plan` (what
is done when), `version_runtime` (one version from load to unload), `version_engine` (one request from submission to answer).
"""

from tpy_data.engine.data_plane import DataPlane, DataPlaneOptions, open_data_plane

__all__ = ["DataPlane", "DataPlaneOptions", "open_data_plane"]
