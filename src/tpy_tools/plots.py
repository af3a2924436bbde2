"""Pages of HTML with plots as inline SVG: no links, no scripts, readable on paper and in the dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import msgspec

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 32, 16, 48
_ACROSS, _UP = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_COLOURS = ("#2563eb", "#16a34a", "#d97706", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
_TICKS = 4
_BAR_MAX = 70
_MARKED_MAX = 40
"""A line of more points has no marks."""

SERIES_MAX = len(_COLOURS)
"""Lines of one plot whose colours differ."""

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --faint: #d0d7de; --back: #ffffff; --dot: #888; --good: #0a7d36;
  --other: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --faint: #3d444d; --back: #0d1117; --good: #3fb950;
  --other: #f0883e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 70rem; margin: 2rem auto;
  padding: 0 1rem; }
pre { overflow-x: auto; font-size: 13px; } figure { margin: 1.5rem 0; } figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; } text { fill: var(--text); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--faint); } .bound { stroke: var(--other); stroke-dasharray: 5 4; }
.dot, .bar { fill: var(--dot); } .dot { fill-opacity: .55; } .good { fill: var(--good); fill-opacity: 1; }
.other { fill: var(--other); fill-opacity: 1; }
.key span { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8rem; height: .8rem;
  margin-right: .3rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .6rem; border-bottom: 1px solid var(--faint); text-align: right; }
.text { text-align: left; }
"""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a plot. `kind`: "good" and "other" stand out."""

    x: float
    y: float
    label: str
    kind: str = ""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A bar of a plot; `value` None: no bar. `label` is shown where it is pointed at."""

    name: str
    value: float | None
    label: str = ""
    kind: str = ""


def page(title: str, body: Sequence[str]) -> str:
    """A whole page; `body` is HTML."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return f'<!doctype html>\n<html lang="en">{head}<style>{_STYLE}</style>\n' + "\n".join(body) + "\n</html>\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[int]) -> str:
    """A table of texts; the columns in `texts` are left-aligned."""

    def row(cells: Sequence[str], tag: str) -> str:
        marks = (" class=text" if at in texts else "" for at in range(len(cells)))
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    lines = [f"<tr>{row(headings, 'th')}</tr>", *(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)]
    return f"<div class=scroll><table>{''.join(lines)}</table></div>"


def line_plot(title: str, series: Sequence[Series], *, across: str, up: str, logarithmic: bool = False) -> str:
    """Lines over numbers, or over the logarithms of numbers above 0."""
    points = [point for each in series for point in each.points]
    low = min(x for x, _ in points) if logarithmic else 0.0
    high = max(x for x, _ in points)
    frame = _Frame(low, high if logarithmic else nice_ceiling(high), max(y for _, y in points))
    parts = [frame.axes(across, up)]
    for number, each in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = [(frame.x(x), frame.y(y)) for x, y in each.points]
        path = " ".join(f"{x},{y}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(placed) <= _MARKED_MAX:
            parts += [
                f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}">{_tip(f"{each.name}: {at:g}, {value:.1f}")}</circle>'
                for (x, y), (at, value) in zip(placed, each.points, strict=True)
            ]
    return _figure(title, parts, [each.name for each in series])


def dot_plot(title: str, dots: Sequence[Dot], *, across: str, up: str, bounds: Sequence[float] = ()) -> str:
    """Points, the last ones on top. `bounds`: heights that are marked, where they lie within."""
    frame = _Frame(0.0, nice_ceiling(max(dot.x for dot in dots) * 1.02), max(dot.y for dot in dots) * 1.02)
    parts = [frame.axes(across, up)]
    parts += [
        f'<line class="bound" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{frame.y(bound)}" y2="{frame.y(bound)}"/>'
        for bound in bounds
        if bound <= frame.top
    ]
    for dot in dots:
        where = f'cx="{frame.x(dot.x)}" cy="{frame.y(dot.y)}" r="{6 if dot.kind else 4}"'
        parts.append(f'<circle class="dot {dot.kind}" {where}>{_tip(dot.label)}</circle>')
    return _figure(title, parts)


def bar_plot(title: str, bars: Sequence[Bar], *, across: str, up: str) -> str:
    """Upright bars, with their names below."""
    frame = _Frame(0.0, 0.0, max((bar.value or 0.0 for bar in bars), default=0.0))
    step = _ACROSS / len(bars)
    parts = [frame.axes(across, up)]
    for number, bar in enumerate(bars):
        middle, y = _LEFT + step * (number + 0.5), frame.y(bar.value or 0.0)
        if bar.value is not None:
            width = min(step * 0.6, _BAR_MAX)
            size = f'x="{middle - width / 2:.1f}" y="{y}" width="{width:.1f}" height="{frame.y(0) - y:.1f}"'
            parts.append(f'<rect class="bar {bar.kind}" {size}>{_tip(bar.label)}</rect>')
            parts.append(f'<text x="{middle:.1f}" y="{y - 4:.1f}" text-anchor="middle">{_number(bar.value)}</text>')
        parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{escape(bar.name)}</text>')
    return _figure(title, parts)


def stacked_plot(title: str, rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], *, unit: str) -> str:
    """A lying bar for each row, of parts that have `names`."""
    left, line = 190, 26
    longest = max(sum(values) for _, values in rows) or 1.0
    parts = []
    for number, (text, values) in enumerate(rows):
        x, y = float(left), 12 + number * line
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(text)}</text>')
        for at, (name, value) in enumerate(zip(names, values, strict=True)):
            width = value / longest * (_WIDTH - left - 10)
            size = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="18"'
            parts.append(f'<rect {size} fill="{_COLOURS[at]}">{_tip(f"{name}: {value:.0f} {unit}")}</rect>')
            x += width
    return _figure(title, parts, names, height=24 + line * len(rows))


class _Frame:
    """The scales of a plot. `low` above 0: logarithmic from there on; `high` 0: the width has no numbers."""

    def __init__(self, low: float, high: float, top: float) -> None:
        self._low = low
        self._high = max(high, low * 1.01) if low else high
        self.top = nice_ceiling(top)

    def x(self, value: float) -> float:
        """The place of a number across."""
        if self._low:
            share = math.log(value / self._low) / math.log(self._high / self._low)
        else:
            share = value / self._high if self._high else 0.0
        return round(_LEFT + share * _ACROSS, 1)

    def y(self, value: float) -> float:
        """The place of a number upwards."""
        return round(_HEIGHT - _BOTTOM - value / self.top * _UP, 1)

    def axes(self, across: str, up: str) -> str:
        """The lines, numbers and titles around."""
        parts = []
        for tick in range(_TICKS + 1):
            share = tick / _TICKS
            y = self.y(self.top * share)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{_number(self.top * share)}</text>')
            if self._high:
                at = self._low * (self._high / self._low) ** share if self._low else self._high * share
                place = f'x="{_LEFT + share * _ACROSS:.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
                parts.append(f'<text {place} text-anchor="middle">{_number(at)}</text>')
        middle = _TOP + _UP / 2
        parts.append(f'<text x="{_LEFT + _ACROSS / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>')
        turned = f'x="14" y="{middle}" transform="rotate(-90 14 {middle})"'
        parts.append(f'<text {turned} text-anchor="middle">{escape(up)}</text>')
        return "".join(parts)


def _figure(title: str, parts: Sequence[str], names: Sequence[str] = (), *, height: int = _HEIGHT) -> str:
    key = "".join(
        f'<span><i style="background:{_COLOURS[at % len(_COLOURS)]}"></i>{escape(name)}</span>' for at, name in enumerate(names)
    )
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    svg = f'<svg {size} role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
    return f'<figure><figcaption>{escape(title)}</figcaption>{svg}<div class="key">{key}</div></figure>'


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def nice_ceiling(value: float) -> float:
    """The next number above that is 1, 2, 3, 4, 5, 6, 8 or 10 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 3, 4, 5, 6, 8, 10) if factor * power >= value * (1 - 1e-9))
