"""Plots as SVG: where things are drawn, and texts that need escaping."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tpy_tools.plots import Bar, Dot, Series, bar_plot, dot_plot, line_plot, nice_ceiling, page, stacked_plot, table


def drawn(figure: str) -> ElementTree.Element:
    """The SVG of a figure; it is well-formed XML."""
    (svg,) = re.findall("<svg.*?</svg>", figure)
    return ElementTree.fromstring(svg)


def test_a_line_goes_through_its_points() -> None:
    svg = drawn(line_plot("T<itle", [Series(name="a & b", points=[(0, 0), (5, 50), (10, 100)])], across="x", up="y"))
    (line,) = svg.findall("polyline")
    points = [tuple(map(float, pair.split(","))) for pair in str(line.get("points")).split()]
    (left, bottom), (middle, half), (right, top) = points
    assert left < middle < right
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    assert bottom - half == pytest.approx(half - top, abs=0.2)
    assert [str(tip.text) for tip in svg.iter("title")] == ["a & b: 0, 0.0", "a & b: 5, 50.0", "a & b: 10, 100.0"]


def test_numbers_across_are_round() -> None:
    svg = drawn(line_plot("t", [Series(name="a", points=[(3522.4, 1), (6556.1, 2)])], across="x", up="y"))
    assert {"2,000", "4,000", "6,000", "8,000"} <= {text.text for text in svg.iter("text")}


def test_logarithmic_distances_are_ratios() -> None:
    svg = drawn(line_plot("t", [Series(name="a", points=[(1, 1), (10, 1), (100, 1)])], across="x", up="y", logarithmic=True))
    xs = [float(circle.get("cx", "")) for circle in svg.findall("circle")]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)


def test_one_point_is_a_plot() -> None:
    assert drawn(line_plot("t", [Series(name="a", points=[(7, 0)])], across="x", up="y", logarithmic=True)).findall("circle")
    assert drawn(dot_plot("t", [Dot(x=0, y=0, label="nothing")], across="x", up="y")).findall("circle")


def test_dots_that_stand_out_and_the_bound() -> None:
    dots = [Dot(x=1, y=1, label="<one>"), Dot(x=2, y=3, label="best", kind="good")]
    svg = drawn(dot_plot("t", dots, across="x", up="y", bounds=[2, 1000]))
    assert [(circle.get("class"), str(circle[0].text)) for circle in svg.findall("circle")] == [
        ("dot ", "<one>"),
        ("dot good", "best"),
    ]
    (bound,) = [line for line in svg.findall("line") if line.get("class") == "bound"]
    heights = [float(circle.get("cy", "")) for circle in svg.findall("circle")]
    assert heights[1] < float(bound.get("y1", "")) < heights[0]


def test_bars_have_the_height_of_their_values() -> None:
    bars = [Bar(name="1", value=5.0, label="a"), Bar(name="2", value=10.0, kind="good"), Bar(name="3 (not measured)", value=None)]
    svg = drawn(bar_plot("t", bars, across="x", up="y"))
    heights = [float(bar.get("height", "")) for bar in svg.findall("rect")]
    assert len(heights) == 2
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.3)
    assert "3 (not measured)" in [text.text for text in svg.findall("text")]


def test_parts_of_a_row_lie_behind_each_other() -> None:
    svg = drawn(stacked_plot("t", [("a", [1.0, 3.0]), ("b", [2.0, 0.0])], ["p", "q"], unit="us"))
    first, second, *_ = svg.findall("rect")
    assert float(second.get("x", "")) == pytest.approx(float(first.get("x", "")) + float(first.get("width", "")), abs=0.2)
    assert float(second.get("width", "")) == pytest.approx(3 * float(first.get("width", "")), abs=0.3)


def test_a_page_links_nothing() -> None:
    text = page("A & B", [table(["<h>", "n"], [["<script>", "1"]], texts=(0,))])
    assert "<title>A &amp; B</title>" in text
    assert "<td class=text>&lt;script&gt;</td><td>1</td>" in text
    assert "://" not in text


@pytest.mark.parametrize(("value", "above"), [(0, 1), (1, 1), (1.1, 2), (31, 40), (0.45, 0.5), (900, 1000), (1000, 1000)])
def test_scales_end_with_round_numbers(value: float, above: float) -> None:
    assert nice_ceiling(value) == pytest.approx(above)
