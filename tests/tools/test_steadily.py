"""Tests that fail are run once more, alone, and only what passes then is forgiven."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.steadily import run

SETTINGS = """
[pytest]
addopts = -q -p no:cacheprovider -p no:schemathesis --strict-config
filterwarnings = error
"""
"""As this repository has them."""

SOURCE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", [{names}])
def test_it(name):
    place = Path(__file__).with_name("seen-" + name.replace("/", "-"))
    seen = place.exists()
    place.touch()
    assert seen and not name.startswith("broken")

def test_another():
    with Path(__file__).with_name("others").open("a") as others:
        others.write("x")
"""


@pytest.mark.parametrize(
    ("names", "code", "others"),
    [
        (["a b", "c/[d]"], 0, 1),
        (["a", "broken"], 1, 1),
        ([f"a{number}" for number in range(6)], 1, 1),
    ],
    ids=["unsteady", "broken", "too many"],
)
def test_failures_are_run_again(tmp_path: Path, names: list[str], code: int, others: int) -> None:
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "test_them.py").write_text(SOURCE.format(names=", ".join(map(repr, names))))
    assert run(["-q", "test_them.py"], tmp_path) == code
    assert (tmp_path / "others").read_text() == "x" * others


def test_what_is_no_failure_is_final(tmp_path: Path) -> None:
    assert run(["no_such_file.py"], tmp_path) == 4
