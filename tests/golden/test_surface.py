"""No flag, route, metric or Python name goes or comes unnoticed."""

from __future__ import annotations

import pytest

from .surface import FOLDER, SURFACES

ADVICE = "promised in docs/reference/stability.md: deprecate first; what is new: python -m tests.golden, and a file in changes/"


@pytest.mark.parametrize("name", SURFACES)
def test_what_users_rely_on_is_there(name: str) -> None:
    promised = set((FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines())
    found = set(SURFACES[name]())
    assert len(found) > 10
    assert promised - found == set(), f"gone, and {ADVICE}"
    assert found - promised == set(), f"not written down; {ADVICE}"
