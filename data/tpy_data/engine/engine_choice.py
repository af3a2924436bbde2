"""Which engine a loaded version runs on."""

from __future__ import annotations

from typing import cast

from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.state import ObservedKey
from tpy_data.engine.loading import LoadedVersion
from tpy_data.engine.rate_limiter import InstanceGate
from tpy_data.engine.sequence_engine import SequenceEngine
from tpy_data.engine.sequence_peers import SequencePeers
from tpy_data.engine.version_engine import VersionEngine
from tpy_data.schedulers.core import SchedulerCore
from tpy_data.schedulers.driver import Performer, SchedulerDriver
from tpy_data.schedulers.gated_driver import GatedDriver, PooledCore


def executing_engine(
    key: ObservedKey,
    loaded: LoadedVersion,
    sequences: SequencePeers,
    clock: Clock,
    deliveries: Deliveries,
    gate: InstanceGate | None = None,
) -> VersionEngine:
    """The engine that executes requests on instances: that of sequence models, or of any other. `gate` None: nothing is rate
    limited. With one, batches of sequences wait at the door of their instance, because a sequence does not change it."""
    if loaded.config.sequence_batching is not None:
        sequence_engine = SequenceEngine(key.model, key.version, loaded, sequences, clock, deliveries)
        sequence_engine.gate = gate
        return sequence_engine
    if gate is None:
        return VersionEngine(loaded.config, key.version, loaded.core, clock, deliveries=deliveries)

    def gated(core: SchedulerCore, clock: Clock, performer: Performer) -> SchedulerDriver:
        return GatedDriver(cast(PooledCore, core), clock, performer, gate)

    engine = VersionEngine(loaded.config, key.version, loaded.core, clock, make_driver=gated, deliveries=deliveries)
    engine.gate = gate
    return engine
