"""Medians and ratios."""

from benchmarks.measurement import Measurement, summarise


def measured(contender: str, value: float, *, case: str = "1 connection", number: int = 1) -> Measurement:
    return Measurement(
        row="JSON", case=case, metric="throughput", unit="/s", contender=contender, baseline="Triton", round=number, value=value
    )


def test_lines_hold_medians_extremes_and_ratios_to_the_baseline() -> None:
    rounds = [("tpy", 30.0, 1), ("Triton", 10.0, 1), ("tpy", 10.0, 2), ("Triton", 12.0, 2), ("tpy", 24.0, 3), ("Triton", 50.0, 3)]

    (line,) = summarise([measured(contender, value, number=number) for contender, value, number in rounds])

    tpy, triton = line.cells
    assert (tpy.contender, tpy.median, tpy.minimum, tpy.maximum, tpy.rounds) == ("tpy", 24.0, 10.0, 30.0, 3)
    assert (triton.median, triton.ratio) == (12.0, 1.0)
    assert tpy.ratio == 2.0


def test_without_the_baseline_there_is_no_ratio() -> None:
    (line,) = summarise([measured("tpy", 5.0)])

    assert [cell.ratio for cell in line.cells] == [None]


def test_a_baseline_of_zero_gives_no_ratio() -> None:
    (line,) = summarise([measured("tpy", 5.0), measured("Triton", 0.0)])

    assert [cell.ratio for cell in line.cells] == [None, None]


def test_lines_keep_the_order_of_measurement() -> None:
    lines = summarise([measured("tpy", 1.0, case=case) for case in ("1", "64", "16", "64")])

    assert [line.case for line in lines] == ["1", "64", "16"]
