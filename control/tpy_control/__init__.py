"""The control plane: decides which models are served, and writes the desired half of the model-state store.

It scans model repositories (`sources`), decides (`core`, without I/O), and answers for the repository (`ControlPlane`, an
implementation of tpy.services.RepositoryService). It never loads a model and never imports `tpy_data` or a backend.

Read `core/control.py` for the rule, `plane.py` for what happens when, `run.py` for the tasks. `check.py` and `downloads.py` are
for `tpy check`.
"""

from tpy_control.options import ControlMode, ControlOptions
from tpy_control.plane import StartupReport
from tpy_control.run import run_control_plane
from tpy_control.service import ControlPlane
from tpy_control.sources import BACKENDS_FOLDER, DiskSource, RepositorySource

__all__ = [
    "BACKENDS_FOLDER",
    "ControlMode",
    "ControlOptions",
    "ControlPlane",
    "DiskSource",
    "RepositorySource",
    "StartupReport",
    "run_control_plane",
]
