"""Tables in Markdown and the page that holds them."""

import pytest

from benchmarks.machine import Machine
from benchmarks.measurement import Cell, Measurement, summarise
from benchmarks.report import BEGIN, END, Report, cell_text, grouped, markdown, with_results


def measured(row: str, contender: str, value: float) -> Measurement:
    return Measurement(
        row=row, case="1 connection", metric="rate", unit="/s", contender=contender, baseline="Triton", round=1, value=value
    )


def report_of(*measurements: Measurement) -> Report:
    machine = Machine(
        date="2026-01-02 03:04 UTC",
        processor="some CPU",
        cores=2,
        memory_gb=8.0,
        kernel="6.1",
        python="3.11",
        versions={"tpy": "0.1"},
        load_before=0.25,
    )
    return Report(machine=machine, rounds=1, seconds=2, summary=summarise(measurements), measurements=measurements)


def test_a_group_has_the_baseline_first_and_each_contender_once() -> None:
    lines = summarise([measured("JSON", "tpy", 1.0), measured("JSON", "Triton", 2.0), measured("binary", "tpy", 3.0)])

    assert [(row, names) for row, _, names in grouped(lines)] == [("JSON", ["Triton", "tpy"]), ("binary", ["tpy"])]


def test_markdown_shows_the_circumstances_and_one_table_for_each_row() -> None:
    text = markdown(
        report_of(measured("JSON", "tpy", 3000.0), measured("JSON", "Triton", 2000.0), measured("binary", "tpy", 1.0))
    )

    assert "2 cores of some CPU" in text
    assert "| 1 connection | rate, /s | 2,000 | 3,000 (1.50) |" in text
    assert text.count("| case |") == 2
    assert text.startswith(BEGIN)
    assert text.endswith(END + "\n")


def test_a_contender_that_was_not_measured_has_a_dash() -> None:
    assert cell_text(None, "Triton") == "-"


@pytest.mark.parametrize(("value", "text"), [(1234.6, "1,235"), (123.46, "123.5"), (1.234, "1.23"), (0.0, "0.00")])
def test_numbers_are_short(value: float, text: str) -> None:
    cell = Cell(contender="tpy", median=value, minimum=value, maximum=value, rounds=1, ratio=None)

    assert cell_text(cell, "Triton") == text


def test_only_the_results_of_a_page_are_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    assert with_results(page, f"{BEGIN}\nnew\n{END}\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}\n{BEGIN}"])
def test_a_page_without_a_place_for_results_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no place for results"):
        with_results(page, "new")


def test_a_page_may_have_several_places_for_results() -> None:
    page = f"{BEGIN}\nold\n{END}\n<!-- a -->\nold\n<!-- b -->\n"

    text = markdown(report_of(measured("JSON", "tpy", 1.0)), begin="<!-- a -->", end="<!-- b -->")

    assert text.startswith("<!-- a -->")
    assert with_results(page, text, begin="<!-- a -->", end="<!-- b -->") == f"{BEGIN}\nold\n{END}\n{text}"
