// The parts of a traced request as bars on one time axis.

import { s } from "./dom.js";
import { time } from "./format.js";

const WIDTH = 1100;
const LEFT = 230;
const ROW = 24;

/** The phases of a part that have their times: [name, begin, end], in nanoseconds. */
export function phases({ timestamps }) {
  const at = Object.fromEntries(timestamps.map(({ name, ns }) => [name, ns]));
  const receive = "HTTP_RECV_START" in at ? "HTTP_RECV" : "GRPC_WAITREAD";
  const send = "HTTP_SEND_START" in at ? "HTTP_SEND" : "GRPC_SEND";
  const computed = "COMPUTE_START" in at;
  return [
    ["receive", at[`${receive}_START`], at[`${receive}_END`]],
    ["queue", computed ? at.QUEUE_START : undefined, at.COMPUTE_START],
    ["input", at.COMPUTE_START, at.COMPUTE_INPUT_END],
    ["infer", at.COMPUTE_INPUT_END, at.COMPUTE_OUTPUT_START],
    ["output", at.COMPUTE_OUTPUT_START, at.COMPUTE_END],
    ["steps", computed ? undefined : at.REQUEST_START, at.REQUEST_END],
    ["send", at[`${send}_START`], at[`${send}_END`]],
  ].filter(([, begin, end]) => begin !== undefined && end !== undefined && end >= begin);
}

/** The first moment of all parts, and the time until the last. */
export function span(parts) {
  const moments = parts.flatMap((part) => part.timestamps.map(({ ns }) => ns)).filter((ns) => ns > 0);
  const from = Math.min(...moments);
  return { from, total: Math.max(...moments) - from };
}

function depth(part, parts) {
  let found = 0;
  for (let at = part; at && at.parent_id; at = parts.find((each) => each.id === at.parent_id)) found += 1;
  return found;
}

export function waterfall(parts) {
  const { from, total } = span(parts);
  const x = (ns) => LEFT + ((ns - from) / (total || 1)) * (WIDTH - LEFT - 8);
  const height = parts.length * ROW + 20;
  const bars = parts.map((part, row) => [
    s("text", { x: 4 + 14 * Math.min(6, depth(part, parts)), y: row * ROW + 16, class: part.status === "OK" ? "label" : "label bad" }, part.model_name.slice(0, 28)),
    s("line", { x1: LEFT, x2: WIDTH - 8, y1: (row + 1) * ROW - 1, y2: (row + 1) * ROW - 1, class: "grid" }),
    phases(part).map(([name, begin, end]) => {
      const width = Math.max(1, x(end) - x(begin));
      const words = `${name} ${time((end - begin) / 1e6)}`;
      return s(
        "g",
        null,
        s("rect", { x: x(begin), y: row * ROW + 3, width, height: ROW - 7, class: `phase ${name}` }, s("title", null, `${part.model_name}: ${words}`)),
        width > words.length * 6.2 ? s("text", { x: x(begin) + 4, y: row * ROW + 15, class: "inside" }, words) : null,
      );
    }),
  ]);
  return s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, class: "timeline waterfall", role: "img", "aria-label": `${parts.length} parts in ${time(total / 1e6)}` },
    bars,
    s("text", { x: LEFT, y: height - 5, class: "tick" }, "0"),
    s("text", { x: WIDTH - 8, y: height - 5, class: "tick", "text-anchor": "end" }, time(total / 1e6)),
  );
}
