// Line charts and timelines, as SVG.

import { h, s } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 110;
const LEFT = 46;
const BOTTOM = 16;
const TOP = 8;

/** Time between two points after which one is missing. It is longer where there are so many models that looks are rare. */
export const pace = { gap: 2500 };

/** A step between the lines of an axis that shows up to `max`: 1, 2 or 5 times a power of ten; of bytes a power of two. */
export function niceStep(max, lines, binary = false) {
  const raw = max / lines;
  if (binary) return 2 ** Math.ceil(Math.log2(raw));
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].find((each) => each * power >= raw * 0.999) * power;
}

/** The pieces of a line through points {at, value}; null ends a piece, and `missing` stands where there is no point for a while. */
export function pieces(points, from, to, { missing = null, gap = pace.gap } = {}) {
  const found = [];
  let piece = [];
  let last = null;
  const add = (at, value) => {
    if (value === null || value === undefined) {
      if (piece.length) found.push(piece);
      piece = [];
    } else piece.push([at, value]);
  };
  for (const { at, value } of points) {
    if (at < from) {
      last = at;
      continue;
    }
    if (last === null ? at - from > gap && missing !== null && points.length > 0 : at - last > gap) {
      add(last === null ? from : last + 1, missing);
      add(at - 1, missing);
    }
    add(at, value);
    last = at;
  }
  if (last !== null && to - last > gap) {
    add(last + 1, missing);
    add(to, missing);
  }
  if (piece.length) found.push(piece);
  return found;
}

/** A chart of the last `seconds`. `series`: {label, points: [{at, value}], missing, gap}. `format` writes values. */
export function lineChart({ title, series, to, seconds = 120, format, binary = false }) {
  const from = to - seconds * 1000;
  const drawn = series.map((each) => pieces(each.points, from, to, { missing: each.missing ?? null, gap: each.gap ?? pace.gap }));
  const values = drawn.flat(2).map(([, value]) => value);
  const top = Math.max(...values, 0);
  const step = top > 0 ? niceStep(top, 3, binary) : 1;
  const max = Math.max(step, Math.ceil(top / step - 1e-9) * step);
  const x = (at) => LEFT + ((at - from) / (to - from)) * (WIDTH - LEFT - 4);
  const y = (value) => TOP + (1 - value / max) * (HEIGHT - TOP - BOTTOM);
  const grid = [];
  for (let value = 0; value <= max * 1.001; value += step) {
    grid.push(
      s("line", { x1: LEFT, x2: WIDTH - 4, y1: y(value), y2: y(value), class: "grid" }),
      s("text", { x: LEFT - 5, y: y(value) + 3, class: "tick", "text-anchor": "end" }, format(value)),
    );
  }
  const lines = drawn.map((each, number) =>
    each.map((piece) =>
      piece.length === 1
        ? s("circle", { cx: x(piece[0][0]), cy: y(piece[0][1]), r: 1.6, class: `dot series${number}` })
        : s("path", { d: `M${piece.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`, class: `series${number}` }),
    ),
  );
  const latest = series.map((each) => each.points.at(-1)).map((point) => (point && to - point.at < (series[0].gap ?? pace.gap) ? point.value : null));
  const words = series.map((each, number) => `${each.label} ${format(latest[number] ?? each.missing ?? null)}`).join(", ");
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": `${title}: ${words}` },
    grid,
    s("text", { x: LEFT, y: HEIGHT - 3, class: "tick" }, `${seconds} s ago`),
    s("text", { x: WIDTH - 4, y: HEIGHT - 3, class: "tick", "text-anchor": "end" }, "now"),
    lines,
  );
}

/** A chart with its title and a legend. */
export function figure(title, series, to, format, binary = false) {
  const legend = series.length > 1 ? series.map((each, at) => h("span", { class: `legend${at}` }, ` ${each.label} `)) : "";
  return h("figure", null, h("figcaption", null, title, " ", legend), lineChart({ title, series, to, format, binary }));
}

/** Rows of bars on one time axis: [{label, state, bars: [{begin, end, title, size}]}], in milliseconds. */
export function timeline(rows, { to, span }) {
  const height = 22;
  const left = 190;
  const width = 1100;
  const x = (at) => left + Math.min(1, Math.max(0, (at - to + span) / span)) * (width - left - 4);
  const sizes = Math.max(1, ...rows.flatMap((row) => row.bars.map((bar) => bar.size)));
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${rows.length * height + 18}`, class: "timeline", role: "img", "aria-label": "Batches of each instance over time" },
    rows.map((row, number) => [
      s("text", { x: 4, y: number * height + 15, class: "label" }, row.label),
      s("line", { x1: left, x2: width - 4, y1: (number + 1) * height - 1, y2: (number + 1) * height - 1, class: "grid" }),
      row.bars
        .filter((bar) => bar.end > to - span)
        .map((bar) =>
          s(
            "rect",
            {
              x: x(bar.begin),
              y: number * height + 3,
              width: Math.max(1, x(bar.end) - x(bar.begin)),
              height: height - 6,
              class: "bar",
              "fill-opacity": (0.35 + (0.65 * bar.size) / sizes).toFixed(2),
            },
            s("title", null, bar.title),
          ),
        ),
    ]),
    s("text", { x: left, y: rows.length * height + 14, class: "tick" }, `${(span / 1000).toPrecision(2)} s ago`),
    s("text", { x: width - 4, y: rows.length * height + 14, class: "tick", "text-anchor": "end" }, "now"),
  );
}
