"""Which engine a loaded version runs on."""

from __future__ import annotations

from functools import partial
from typing import cast

from tpy.clock import Clock
from tpy.config import RequestTimeout, enforces_timeouts
from tpy.deliveries import Deliveries
from tpy.state import ObservedKey
from tpy_data.engine.channels.rate_limiter import InstanceGate
from tpy_data.engine.loading.loaded_version import LoadedVersion
from tpy_data.engine.sequences.sequence_engine import SequenceEngine
from tpy_data.engine.sequences.sequence_peers import SequencePeers
from tpy_data.engine.versions.version_engine import VersionEngine
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
    *,
    request_timeout: RequestTimeout = RequestTimeout.QUEUE,
) -> VersionEngine:
    """The engine that executes requests on instances: that of sequence models, or of any other. `gate` None: nothing is rate
    limited. With one, batches of sequences wait in the channel of their instance, because a sequence does not change it."""
    engine: VersionEngine
    if loaded.config.sequence_batching is not None:
        engine = SequenceEngine(key.model, key.version, loaded, sequences, clock, deliveries)
    elif gate is None:
        engine = VersionEngine(loaded.config, key.version, loaded.core, clock, deliveries=deliveries)
    else:
        make_driver = partial(_gated_driver, gate=gate)
        engine = VersionEngine(loaded.config, key.version, loaded.core, clock, make_driver=make_driver, deliveries=deliveries)
    engine.gate = gate
    engine.enforces_timeouts = enforces_timeouts(loaded.config, request_timeout)
    return engine


def _gated_driver(core: SchedulerCore, clock: Clock, performer: Performer, *, gate: InstanceGate) -> SchedulerDriver:
    return GatedDriver(cast(PooledCore, core), clock, performer, gate)
