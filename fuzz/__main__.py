"""Command line: `python -m fuzz --help`.

Exit status: 0 all is well, 1 an invariant was broken (or a canary held), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import random
import sys

from fuzz.registry import TARGETS, target_named
from fuzz.runner import run_target

_SECONDS_DEFAULT = 10.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Try random histories against stated invariants.")
    parser.add_argument("--list", action="store_true", help="name the targets with their invariants")
    parser.add_argument("--target", help="only this target (default: all)")
    parser.add_argument(
        "--seconds", type=float, help=f"for each target (default: {_SECONDS_DEFAULT:.0f}, unless --examples is given)"
    )
    parser.add_argument("--examples", type=int, help="histories for each target")
    parser.add_argument("--seed", type=int, help="the first history's seed (default: chosen at random and printed)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="only the history with this seed; needs --target")
    parser.add_argument("--smoke", action="store_true", help="a fixed, short run of every target, for CI")
    arguments = parser.parse_args()
    if arguments.replay is not None and arguments.target is None:
        parser.error("--replay needs --target")
    if arguments.target is not None and target_named(arguments.target) is None:
        parser.error(f"there is no target {arguments.target!r}; targets: {', '.join(target.name for target in TARGETS)}")
    return arguments


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    chosen = TARGETS if arguments.target is None else tuple(target for target in TARGETS if target.name == arguments.target)
    if arguments.list:
        for target in chosen:
            print(f"{target.name}{' (must fail)' if target.must_fail else ''}\n  {target.invariant}")
        return 0
    if arguments.replay is not None:
        results = [run_target(target, seed=arguments.replay, examples=1, seconds=None) for target in chosen]
    elif arguments.smoke:
        results = [run_target(target, seed=0, examples=target.smoke_examples, seconds=None) for target in chosen]
    else:
        seed = random.SystemRandom().getrandbits(48) if arguments.seed is None else arguments.seed
        seconds = _SECONDS_DEFAULT if arguments.seconds is None and arguments.examples is None else arguments.seconds
        results = [run_target(target, seed=seed, examples=arguments.examples, seconds=seconds) for target in chosen]
    return 0 if all(results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
