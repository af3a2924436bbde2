"""The tool itself: which faults it makes, and that it takes no justification or fault for another place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.by_hand import Fault, faults
from tests.mutation.justified import Justification, Justified
from tests.mutation.mutants import Mutant, mutant_of, places_of

ROOT = Path(__file__).parents[2]
SOURCE = '''
class Point(Struct, frozen=True):
    x: int | None = 0

    def right_of(self, other: Point | None) -> bool | None:
        """Whether it is further to the right by 1."""
        if other is None:
            return None
        note(other)
        return self.x > other.x and not other.hidden
'''


def test_faults_are_where_a_run_can_show_them() -> None:
    assert [(place.line, place.what) for place in places_of(SOURCE)] == [
        (3, "off by one"),
        (7, "comparison turned"),
        (7, "condition negated"),
        (9, "call dropped"),
        (10, "and/or swapped"),
        (10, "comparison turned"),
    ]


@pytest.mark.parametrize(
    ("what", "line", "text"),
    [
        ("off by one", 3, "x: int | None = 1"),
        ("condition negated", 7, "if not other is None:"),
        ("call dropped", 9, "pass"),
        ("and/or swapped", 10, "return self.x > other.x or not other.hidden"),
        ("comparison turned", 10, "return self.x >= other.x and (not other.hidden)"),
    ],
)
def test_a_mutant_has_one_fault(what: str, line: int, text: str) -> None:
    [place] = [place for place in places_of(SOURCE) if (place.line, place.what) == (line, what)]
    mutant = mutant_of("m.py", SOURCE, place)
    assert text in mutant.source
    assert (mutant.path, mutant.line, mutant.what) == ("m.py", line, what)


def test_a_fault_by_hand_must_fit_one_place(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("a = 1\nb = 1\nc = 2\n")

    def fault(old: str) -> Fault:
        return Fault(name="n", breaks="", file="m.py", old=old, new="3", suites=())

    assert fault("2").mutant(tmp_path) == Mutant("m.py", 3, "n", "a = 1\nb = 1\nc = 3\n")
    for old, times in (("1", 2), ("7", 0)):
        with pytest.raises(ValueError, match=f"occurs {times} times in m.py, expected once"):
            fault(old).mutant(tmp_path)


def test_a_justification_is_for_one_line_and_kind(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("    a = 1\n")
    justified = Justified([Justification(file="m.py", line="a = 1", what="off by one", why="because")])
    assert justified.why(Mutant("m.py", 1, "off by one", ""), "a = 1") == "because"
    assert justified.why(Mutant("m.py", 1, "off by one", ""), "a = 2") is None
    assert justified.why(Mutant("m.py", 1, "call dropped", ""), "a = 1") is None
    assert justified.outdated(tmp_path) == []
    (tmp_path / "m.py").write_text("a = 2\n")
    assert len(justified.outdated(tmp_path)) == 1


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: fault.name)
def test_the_text_of_a_fault_by_hand_is_in_its_file(fault: Fault) -> None:
    assert fault.mutant(ROOT).source != (ROOT / fault.file).read_text()
    assert [suite for suite in fault.suites if not suite.startswith("fuzz:") and not (ROOT / suite).exists()] == []


def test_every_justified_line_is_in_its_file() -> None:
    assert Justified().outdated(ROOT) == []
