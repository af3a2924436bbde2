"""Drawings of boxes, arrows and words as small SVG files, legible in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

_STYLE: Final = """\
text{font:14px system-ui,sans-serif;fill:#1d2129}
.s{font-size:12px}.b{font-weight:600}.m{font-family:ui-monospace,monospace;font-size:13px}.q{fill:#5b6270}
.l{stroke:#5b6270;stroke-width:1.5;fill:none}.d{stroke-dasharray:4 4}.h{fill:#5b6270}
.blue{fill:#e3e9fc;stroke:#4757c4}.green{fill:#dcf2df;stroke:#2e7d32}.amber{fill:#ffebc9;stroke:#b26a00}
.grey{fill:#eceef1;stroke:#7b828f}.none{fill:none;stroke:#7b828f}.red{fill:#fde2e1;stroke:#c0392b}
@media (prefers-color-scheme:dark){text{fill:#e4e7ee}.q,.h{fill:#a9b0bf}.l{stroke:#a9b0bf}
.blue{fill:#27325f;stroke:#8f9dff}.green{fill:#1d3d25;stroke:#7cc98a}.amber{fill:#4d3810;stroke:#f0b14d}
.grey{fill:#343a46;stroke:#8b93a3}.none{stroke:#8b93a3}.red{fill:#552523;stroke:#f08a80}}"""


class Drawing:
    """A picture that grows by boxes, arrows and words; coordinates are pixels."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = width, height
        self._title = title
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, text: str = "", *, color: str = "blue") -> None:
        """A rounded box with lines of text in its middle."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" class="{color}"/>')
        lines = text.split("\n") if text else []
        top = y + height / 2 - (len(lines) - 1) * 9 + 5
        for number, line in enumerate(lines):
            self.words(x + width / 2, top + number * 18, line, anchor="middle")

    def frame(self, x: float, y: float, width: float, height: float, text: str, *, color: str = "none") -> None:
        """A box around others, with its name at the top left."""
        self.box(x, y, width, height, color=color)
        self.words(x + 10, y + 20, text, style="b")

    def words(self, x: float, y: float, text: str, *, anchor: str = "start", style: str = "") -> None:
        """A line of text; `style` is any of s (small), b (bold), m (monospaced) and q (quiet)."""
        classes = f' class="{style}"' if style else ""
        anchored = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{classes}{anchored}>{escape(text, quote=False)}</text>')

    def line(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through points."""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path d="{path}" class="l{" d" if dashed else ""}"/>')

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """A line through points with a head at its end, which is level or upright."""
        self.line(*points, dashed=dashed)
        (before_x, before_y), (x, y) = points[-2:]
        if abs(x - before_x) >= abs(y - before_y):
            back = -8 if x > before_x else 8
            head: Sequence[tuple[float, float]] = ((x, y), (x + back, y - 4), (x + back, y + 4))
        else:
            back = -8 if y > before_y else 8
            head = ((x, y), (x - 4, y + back), (x + 4, y + back))
        self._parts.append('<path d="M' + "L".join(f"{each[0]:g} {each[1]:g}" for each in head) + 'Z" class="h"/>')

    def svg(self) -> str:
        """The whole file."""
        width, height = self._size
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
            f"<title>{escape(self._title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
        )
