// The graph of an ensemble: its inputs, the models that are its steps, its outputs, and the tensors between them.

import { h, s } from "./dom.js";
import { modelHash } from "./parts.js";

const WIDTH = 160;
const HEIGHT = 40;
const GAP_X = 120;
const GAP_Y = 24;
const LETTERS_MAX = 21;

/** A section with the graph, "" for a model that is not an ensemble. */
export function ensembleGraph(configuration) {
  const steps = configuration.ensemble_scheduling?.step ?? [];
  if (!steps.length) return "";
  const nodes = nodesOf(configuration, steps);
  const columns = placed(nodes);
  const tallest = Math.max(...columns.map((column) => column.length));
  const width = columns.length * WIDTH + (columns.length - 1) * GAP_X;
  const height = tallest * (HEIGHT + GAP_Y) + GAP_Y;
  const drawing = s("svg", { width, height, class: "graph" }, edgesOf(nodes).map(drawEdge), nodes.map(drawNode));
  return h("section", { "aria-label": "Graph" }, h("h2", null, "Steps"), h("div", { class: "scroll" }, drawing));
}

function nodesOf(configuration, steps) {
  const end = (kind) => (tensor) => ({
    kind,
    label: tensor.name,
    note: `${tensor.data_type.replace("TYPE_", "")} [${(tensor.dims ?? []).join(", ")}]`,
    takes: kind === "output" ? [tensor.name] : [],
    gives: kind === "input" ? [tensor.name] : [],
  });
  return [
    ...(configuration.input ?? []).map(end("input")),
    ...steps.map((step) => ({
      kind: "step",
      label: step.model_name,
      note: Number(step.model_version ?? -1) > 0 ? `version ${step.model_version}` : "newest version",
      link: modelHash(step.model_name),
      takes: Object.values(step.input_map ?? {}),
      gives: Object.values(step.output_map ?? {}),
    })),
    ...(configuration.output ?? []).map(end("output")),
  ];
}

/** From whom to whom tensors go, with their names. */
function edgesOf(nodes) {
  const edges = [];
  for (const from of nodes)
    for (const to of nodes) {
      const tensors = [...new Set(from.gives.filter((name) => to.takes.includes(name)))];
      if (tensors.length) edges.push({ from, to, tensors });
    }
  return edges;
}

/** Gives each node its place: right of all that it takes tensors from, and outputs last. Returns the columns. */
function placed(nodes) {
  for (const node of nodes) node.column = node.kind === "input" ? 0 : 1;
  const edges = edgesOf(nodes);
  for (let round = 0; round < nodes.length; round++) for (const { from, to } of edges) to.column = Math.max(to.column, Math.min(from.column + 1, nodes.length));
  const last = Math.max(...nodes.map((node) => node.column));
  for (const node of nodes) if (node.kind === "output") node.column = last;
  const columns = Array.from({ length: last + 1 }, (_, at) => nodes.filter((node) => node.column === at));
  for (const column of columns)
    column.forEach((node, at) => {
      node.x = node.column * (WIDTH + GAP_X);
      node.y = GAP_Y + at * (HEIGHT + GAP_Y);
    });
  return columns;
}

function drawNode({ kind, label, note, link, x, y }) {
  const parts = [
    s("title", null, label),
    s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6, class: kind }),
    s("text", { x: x + 8, y: y + 17 }, short(label)),
    s("text", { x: x + 8, y: y + 32, class: "note" }, short(note)),
  ];
  return link ? s("a", { href: link }, parts) : s("g", null, parts);
}

function drawEdge({ from, to, tensors }) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  const names = from.kind === "step" && to.kind === "step" ? tensors.join(", ") : null; // an input and an output have theirs
  return s(
    "g",
    null,
    s("title", null, tensors.join(", ")),
    s("path", { d: `M ${x1} ${y1} C ${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }),
    names && s("text", { x: middle, y: (y1 + y2) / 2 - 5, class: "tensor" }, short(names)),
  );
}

function short(text) {
  return text.length > LETTERS_MAX ? `${text.slice(0, LETTERS_MAX - 1)}…` : text;
}
