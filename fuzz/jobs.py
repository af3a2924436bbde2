"""Several processes that try histories of one target at a time, each from its own seed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from fuzz.registry import target_named
from fuzz.runner import Report, run_target

_SEEDS_OF_A_JOB = 2**40


def run_jobs(target: str, *, jobs: int, seed: int, examples: int | None, seconds: float | None) -> Iterator[Report]:
    """The reports of all jobs, as they end. Raises BrokenProcessPool when a process dies."""
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_run, target, seed + job * _SEEDS_OF_A_JOB, examples, seconds) for job in range(jobs)]
        for job in as_completed(running):
            yield job.result()


def _run(name: str, seed: int, examples: int | None, seconds: float | None) -> Report:
    target = target_named(name)
    assert target is not None, name  # the command line was checked
    return run_target(target, seed=seed, examples=examples, seconds=seconds)
