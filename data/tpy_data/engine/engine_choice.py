"""Which engine a loaded version runs on."""

from __future__ import annotations

from tpy.clock import Clock
from tpy.state import ObservedKey
from tpy_data.engine.loading import LoadedVersion
from tpy_data.engine.sequence_engine import SequenceEngine
from tpy_data.engine.sequence_peers import SequencePeers
from tpy_data.engine.version_engine import VersionEngine


def executing_engine(key: ObservedKey, loaded: LoadedVersion, sequences: SequencePeers, clock: Clock) -> VersionEngine:
    """The engine that executes requests on instances: that of sequence models, or of any other."""
    if loaded.config.sequence_batching is not None:
        return SequenceEngine(key.model, key.version, loaded, sequences, clock)
    return VersionEngine(loaded.config, key.version, loaded.core, clock)
