"""Prints `batching: auto` beside `dynamic_batching { }` and the best of a grid of sizes and delays, for each model and load; and
`max_padding` beside arrival order, for sentences.

Mean latency decides: where clients wait for their answers it is throughput too. Changing loads are compared by the geometric mean
of their parts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial

from tests.tuning.lengths import by_length, in_order_of_arrival, serve
from tests.tuning.simulation import (
    COSTS,
    Bursts,
    Clients,
    Cost,
    Load,
    Make,
    Outcome,
    Poisson,
    capacity_per_s,
    fixed,
    measure,
    pairs,
    plain,
    tuned,
)
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US

TOLERANCE = 1.03
GAIN_BY_LENGTH_MIN = 1.3


def loads_of(cost: Cost, length_ns: int, instances: int = 1) -> dict[str, list[tuple[Load, int]]]:
    """Loads by name, for a model."""
    most = instances * capacity_per_s(cost)
    single: dict[str, Load] = {
        "random, 30 %": Poisson(0.3 * most),
        "random, 60 %": Poisson(0.6 * most),
        "random, 90 %": Poisson(0.9 * most),
        "1 client": Clients(1),
        "24 clients": Clients(24),
        "64 clients": Clients(64),
        "16, busy": Clients(16, server_ns=50 * NS_PER_US),
        "bursts of 8": Bursts(8, 0.05 * most),
    }
    spread = Bursts(12, 0.3 * most / 12, spread_ns=2 * NS_PER_MS)
    changing = [(Clients(1), length_ns), (spread, length_ns), (Clients(24), length_ns)]
    return {**{name: [(load, length_ns)] for name, load in single.items()}, "changing": changing}


def score(outcomes: Sequence[Outcome]) -> float:
    """The mean latency, over all parts."""
    return math.exp(sum(math.log(each.mean_ns) for each in outcomes) / len(outcomes))


def scored(make: Make, cost: Cost, name: str, length_ns: int, seeds: int, instances: int = 1) -> float:
    """Of several seeds."""
    loads = loads_of(cost, length_ns, instances)[name]
    return sum([score(measure(make, cost, loads, seed=seed, rounds=2)) for seed in range(1, seeds + 1)]) / seeds


def main() -> int:
    """The exit status: 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="virtual time of each load")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", choices=COSTS, action="append", help="only this; may be repeated")
    parser.add_argument("--instances", type=int, action="append", help="1, 2 and 4 without it; may be repeated")
    arguments = parser.parse_args()
    length_ns = int(arguments.seconds * NS_PER_S)
    models = arguments.model or list(COSTS)
    broken = sum([compare(models, count, length_ns, arguments.seeds) for count in arguments.instances or (1, 2, 4)])
    return 1 if broken + lengths() else 0


def compare(models: Sequence[str], instances: int, length_ns: int, seeds: int) -> int:
    """Prints the loads of these models with so many instances. Returns the number of broken promises."""
    broken = 0
    print(f"{'model':13} {'load':13} {'{ }':>8} {'auto':>8} {'best fixed':>10}  mean latency in ms, instances: {instances}")
    for model in models:
        cost = COSTS[model]
        for load in loads_of(cost, length_ns):
            run = partial(scored, cost=cost, name=load, length_ns=length_ns, seeds=seeds, instances=instances)
            none, auto = run(partial(plain, instances=instances)), run(partial(tuned, instances=instances))
            best, pair = min((run(partial(fixed, *pair, instances=instances)), pair) for pair in pairs())
            best = min(best, none)
            marks = [] if auto <= none * TOLERANCE else ["worse than { }"]
            if auto > best * (1 if load == "changing" else TOLERANCE):
                marks.append(f"worse than size {pair[0]}, delay {pair[1] // 1000} us")
            broken += len(marks)
            shown = f"{none / NS_PER_MS:8.3f} {auto / NS_PER_MS:8.3f} {best / NS_PER_MS:10.3f}"
            print(f"{model:13} {load:13} {shown}  {', '.join(marks)}", flush=True)
    return broken


def lengths() -> int:
    """Prints sentences by length beside arrival order, where two batches or more wait. Returns the number of broken promises."""
    broken = 0
    print(f"{'sentences':26} {'per s':>7} {'by length':>9} {'padding':>8} {'p99':>6} {'longest':>8}")
    for clients in (64, 128, 256):
        for batch_ms in (0, 30):
            before = serve(in_order_of_arrival(), clients, batches=2000, batch_ns=batch_ms * NS_PER_MS)
            for percent in (10, 20, 30):
                ours = serve(by_length(10_000 * percent), clients, batches=2000, batch_ns=batch_ms * NS_PER_MS)
                gain = ours.per_s / before.per_s
                broken += gain < GAIN_BY_LENGTH_MIN
                name = f"{clients}, {batch_ms} ms, max {percent} %"
                late, rare = ours.p99_ns / before.p99_ns, ours.rare_p99_ns / before.rare_p99_ns
                mark = "" if gain >= GAIN_BY_LENGTH_MIN else "less than promised"
                print(
                    f"{name:26} {before.per_s:7.0f} {gain:8.2f}x {ours.padding:8.1%} {late:5.2f}x {rare:7.2f}x  {mark}",
                    flush=True,
                )
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
