"""The model-state store: the only thing that the two planes share.

Two halves, each with exactly one writer:

* **desired**: what should be served, written by the control plane only (`DesiredWriter`);
* **observed**: what is served, written by the data plane only (`ObservedWriter`).

Everyone may read snapshots and wait. Nobody else learns anything by any other way: no callbacks between planes.
"""

from tpy.state.model import (
    UNLOADED,
    DesiredModel,
    DesiredVersion,
    ObservedKey,
    ObservedVersion,
    Rejection,
    Snapshot,
)
from tpy.state.store import DesiredWriter, IllegalMove, ModelStateStore, ObservedWriter

__all__ = [
    "UNLOADED",
    "DesiredModel",
    "DesiredVersion",
    "DesiredWriter",
    "IllegalMove",
    "ModelStateStore",
    "ObservedKey",
    "ObservedVersion",
    "ObservedWriter",
    "Rejection",
    "Snapshot",
]
