"""Prints how equal the times of tenants with equal weights are, in random histories with one model, and with two models that
share a device: Jain's index, and that of an oracle in the same histories."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable

from tests.schedulers import device_shares, model_shares
from tests.schedulers.model_shares import jain, random_history

JAIN_MIN = 0.98
REQUESTS_EACH = 50
RUNS_EACH = 100


def of_one_model(seed: int) -> tuple[float, float]:
    """The index and the oracle's of one history without a device."""
    history = random_history(seed, requests_each=REQUESTS_EACH)
    return jain(model_shares.times_of(history)), jain(model_shares.best_times_of(history))


def of_a_device(seed: int) -> tuple[float, float]:
    """The same with two models on a device."""
    chance = random.Random(seed)
    uses, rows_max = device_shares.fair_uses(chance), chance.choice((1, 4))
    found = device_shares.times_of(uses, seed=seed, runs=RUNS_EACH, rows_max=rows_max)
    return jain(found), jain(device_shares.best_times_of(uses, seed=seed, runs=RUNS_EACH, rows_max=rows_max))


def report(name: str, count: int, first_seed: int, index_of: Callable[[int], tuple[float, float]]) -> float:
    """Prints the indices of these histories. Returns the lowest."""
    found = [(*index_of(seed), seed) for seed in range(first_seed, first_seed + count)]
    best = min(oracle for _, oracle, _ in found)
    found.sort()
    lowest, _, seed = found[0]
    permille = found[len(found) // 1000][0]
    print(
        f"{name}, {count} histories: Jain's index is at least {lowest:.4f} (seed {seed}), in 999 of 1,000 {permille:.4f}, "
        f"in half of them {found[len(found) // 2][0]:.4f}; of the oracle at least {best:.4f}",
        flush=True,
    )
    return lowest


def main() -> int:
    """The exit status: 1 when shares were not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=100_000, help="with one model")
    parser.add_argument("--device-histories", type=int, default=10_000, help="with two models on a device")
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    lowest = 1.0
    if arguments.device_histories:
        lowest = report("two models on a device", arguments.device_histories, arguments.first_seed, of_a_device)
    if arguments.histories:
        lowest = min(lowest, report("one model", arguments.histories, arguments.first_seed, of_one_model))
    return lowest < JAIN_MIN


if __name__ == "__main__":
    raise SystemExit(main())
