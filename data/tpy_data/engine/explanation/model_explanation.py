"""The explanation of a version that is switched in."""

from __future__ import annotations

import msgspec

from tpy.config import ModelConfig
from tpy.ids import ModelId
from tpy.messages import BatchingRules, CalledActivity, InstanceState, ModelExplanation, ModelState
from tpy.units import NS_PER_US
from tpy_data.engine.explanation.core.advice import findings
from tpy_data.engine.explanation.core.recent import recent_activity
from tpy_data.engine.serving.serving_table import Served


def explain(model: ModelId, served: Served, now_ns: int, called: tuple[CalledActivity, ...]) -> ModelExplanation:
    """Explains how the engine treats the requests of `served` now, and advises what to change. `called` are the models that it
    waits for in calls."""
    copy = served.served_copy
    times, counters = copy.engine.statistics.inference(), copy.engine.statistics
    instances = served.instances()
    activity = msgspec.structs.replace(copy.engine.explain(), called=called)
    failed = next((each.reason for each in instances if each.state is InstanceState.FAILED), "")
    facts = ModelExplanation(
        name=model.name,
        version=served.version,
        namespace=model.namespace,
        state=(ModelState.READY if served.ready else ModelState.UNAVAILABLE).value,
        reason="" if served.ready else failed,
        now_ns=now_ns,
        batching=batching_rules(copy.config, is_tuned=bool(activity.queue.tuning or activity.queue.lengths)),
        activity=activity,
        instances=instances,
        recent=recent_activity(instances, now_ns),
        latency=counters.recent_latency(now_ns),
        batch_sizes={batch.batch_size: batch.compute_infer.count for batch in counters.batches()},
        succeeded=times.success.count,
        failed=times.fail.count,
        queue_ns_mean=times.queue.ns // max(1, times.queue.count),
        compute_ns_mean=(times.compute_input.ns + times.compute_infer.ns + times.compute_output.ns)
        // max(1, times.compute_infer.count),
    )
    found = findings(facts)
    limit = found[0].limit if found else activity.queue.waits_for.value
    return msgspec.structs.replace(facts, limit=limit, advice=tuple(finding.sentence for finding in found))


def batching_rules(config: ModelConfig, *, is_tuned: bool = False) -> BatchingRules:
    """The rules of this configuration. `is_tuned`: sizes and delay are not used."""
    dynamic, sequence, ensemble = config.dynamic_batching, config.sequence_batching, config.ensemble_scheduling
    scheduler, delay_us = "default", 0
    sizes: tuple[int, ...] = ()
    if ensemble is not None:
        scheduler = "ensemble"
    elif sequence is not None:
        scheduler = "sequence_batching"
        if sequence.oldest is not None:
            sizes, delay_us = sequence.oldest.preferred_batch_size, sequence.oldest.max_queue_delay_microseconds
        elif sequence.direct is not None:
            delay_us = sequence.direct.max_queue_delay_microseconds
    elif dynamic is not None:
        scheduler = "dynamic_batching"
        sizes, delay_us = dynamic.preferred_batch_size, dynamic.max_queue_delay_microseconds
        if is_tuned:
            sizes, delay_us = (), 0
    return BatchingRules(
        scheduler=scheduler,
        max_batch_size=config.max_batch_size,
        preferred_batch_sizes=() if sizes == (config.max_batch_size,) else sizes,  # that is not a preference
        queue_delay_ns=delay_us * NS_PER_US,
        decoupled=config.decoupled,
        max_inflight_requests=0 if ensemble is None else ensemble.max_inflight_requests,
    )
