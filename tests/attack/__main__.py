"""`python -m tests.attack [ATTACK ...]`: attack a running server and print what others felt, a row for each attack.

Exit status 1: an attack did not hold; 2: the server does not serve at all. Each has a server of its own, on loopback, with the
default limits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from .arena import Outcome
from .registry import ATTACKS, BASELINE, Attack
from .verdict import COLUMNS, cells, problems


def main() -> int:
    """Run what the command line names, or all, until the time is up."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the attacks")
    parser.add_argument("--quick", action="store_true", help="only those of `make test`")
    parser.add_argument("--seconds", type=float, default=290.0, help="begin no attack later than this (default: 290)")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="only these, or those whose name begins so")
    arguments = parser.parse_args()
    chosen = [attack for attack in ATTACKS if _is_chosen(attack, arguments.attacks, quick=arguments.quick)]
    if not chosen:
        parser.error("there is no such attack; --list names them")
    if arguments.list:
        print("\n".join(f"{attack.name}: {_described(attack)}" for attack in chosen))
        return 0
    began = time.monotonic()
    baseline = _run(BASELINE)
    if not baseline.alive:
        return 2
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" + "|--:" * 7 + "|---|")
    print(cells(BASELINE, baseline, baseline), flush=True)
    broken, left_out = [], []
    for attack in chosen:
        if time.monotonic() - began > arguments.seconds:
            left_out.append(attack.name)
            continue
        outcome = _run(attack)
        print(cells(attack, outcome, baseline), flush=True)
        if problems(attack, outcome, baseline):
            broken.append(attack.name)
    print(f"\n{len(chosen) - len(broken) - len(left_out)} held, {len(broken)} did not{': ' if broken else ''}{', '.join(broken)}")
    if left_out:
        print(f"not tried, the time was up: {', '.join(left_out)}")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if broken or left_out else 0


def _is_chosen(attack: Attack, names: list[str], *, quick: bool) -> bool:
    return (attack.quick or not quick) and (not names or any(attack.name.startswith(name) for name in names))


def _described(attack: Attack) -> str:
    function = getattr(attack.run, "func", attack.run)
    return " ".join(str(function.__doc__).split())


def _run(attack: Attack) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tpy-attack-", ignore_cleanup_errors=True) as folder:
        try:
            return attack.run(Path(folder))
        except Exception as error:
            traceback.print_exc(limit=-1, chain=False)
            outcome = Outcome(alive=False)
            outcome.note(f"the attack itself failed: {type(error).__name__}")
            return outcome


if __name__ == "__main__":
    sys.exit(main())
