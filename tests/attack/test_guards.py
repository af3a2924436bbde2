"""The table of guards is about the source as it is: each guard is there once, and the attacks against it are."""

from __future__ import annotations

from .mutations import ROOT, guards
from .registry import ATTACKS


def test_every_guard_is_there_and_its_attacks_are() -> None:
    attacks = {attack.name for attack in ATTACKS}
    found = guards()
    assert len({guard.name for guard in found}) == len(found)
    for guard in found:
        for file, source in guard.changed(ROOT).items():  # ValueError: a text is not in its file, or more than once
            compile(source, file, "exec")
        for case in guard.suites:
            path, _, test = case.partition("::")
            assert case in attacks or (path.startswith("tests/") and f"def {test}" in (ROOT / path).read_text()), case
