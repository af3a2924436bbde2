"""Tables of the log."""

from __future__ import annotations

from tpy.assembly.announcement import table


def test_a_long_reason_is_wrapped_and_nothing_of_it_is_lost() -> None:
    path = "/models/iris/config.pbtxt:3:14:"
    reason = f"UNAVAILABLE: {path} " + " ".join(f"word{number}" for number in range(60))
    lines = table(
        ("Model", "Version", "Status"), [("iris", "1", reason), ("other", "-", "READY")], characters_max=100
    ).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 100
    told = " ".join(line.rsplit("|", 2)[1].strip() for line in lines if line.startswith("| ") and "other" not in line)
    assert told == f"Status {reason}"


def test_short_tables_and_narrow_ones_stay_readable() -> None:
    assert table(("A", "B"), [("a", "b")], characters_max=100) == table(("A", "B"), [("a", "b")])
    lines = table(("Model", "Status"), [("m" * 120, "UNAVAILABLE: x y")], characters_max=100).splitlines()
    assert "UNAVAILABLE: x y" in lines[3]
