// Graphs, from left to right: the steps of an ensemble, the operators of an ONNX file.

import { ask } from "./api.js";
import { h, s } from "./dom.js";
import { modelHash } from "./parts.js";

const WIDTH = 160;
const GAP_X = 120;
const GAP_Y = 24;
const LINE = 15;
const LETTERS_MAX = 21;

/** A section with the graph, "" for a model that is not an ensemble. */
export function ensembleGraph(configuration) {
  const steps = configuration.ensemble_scheduling?.step ?? [];
  if (!steps.length) return "";
  const end = (kind) => (tensor) => endOf(kind, tensor.name, tensor.data_type.replace("TYPE_", ""), tensor.dims ?? []);
  const nodes = [
    ...(configuration.input ?? []).map(end("input")),
    ...steps.map((step) => ({
      kind: "step",
      label: step.model_name,
      notes: [Number(step.model_version ?? -1) > 0 ? `version ${step.model_version}` : "newest version"],
      link: modelHash(step.model_name),
      takes: Object.values(step.input_map ?? {}),
      gives: Object.values(step.output_map ?? {}),
    })),
    ...(configuration.output ?? []).map(end("output")),
  ];
  return h("section", { "aria-label": "Graph" }, h("h2", null, "Steps"), drawing(nodes));
}

/** The graph of a model's file, asked for when it is to be seen; "" for a file that has none. */
export function fileGraph(configuration, path) {
  if (!configuration.default_model_filename?.endsWith(".onnx")) return "";
  const content = h("div", { class: "file-graph" });
  const details = h("details", null, h("summary", null, `Operators of ${configuration.default_model_filename}`), content);
  details.addEventListener("toggle", async () => {
    if (!details.open || content.querySelector("svg")) return;
    content.replaceChildren(h("p", { class: "note" }, "…"));
    try {
      const graph = await ask("GET", `${path}/graph`);
      const { nodes, node_count: count } = graph;
      const shown = nodes.length < count ? `The first ${nodes.length.toLocaleString("en")} of ${count.toLocaleString("en")} nodes.` : `${count.toLocaleString("en")} nodes.`;
      content.replaceChildren(h("p", { class: "note" }, `${shown} Weights are left out.`), drawing(nodesOf(graph)));
    } catch (error) {
      content.replaceChildren(h("p", { class: "result bad" }, error.message));
    }
  });
  return h("section", { "aria-label": "Graph" }, h("h2", null, "Graph"), details);
}

function nodesOf({ inputs, outputs, nodes }) {
  const end = (kind) => (tensor) => endOf(kind, tensor.name, tensor.datatype, tensor.shape);
  return [
    ...inputs.map(end("input")),
    ...nodes.map((node) => {
      const types = node.outputs.map((tensor) => typeText(tensor.datatype, tensor.shape));
      const full = [node.domain ? `${node.domain}.${node.operator}` : node.operator, node.name, ...node.outputs.map((tensor, at) => `${tensor.name}: ${types[at] || "?"}`)];
      if (node.subgraphs.length) full.push(`subgraphs: ${node.subgraphs.join(", ")}`);
      return {
        kind: "operator",
        label: node.operator,
        notes: [node.name, types.filter(Boolean).join(", "), node.subgraphs.join(", ")].filter(Boolean),
        title: full.filter(Boolean).join("\n"),
        takes: node.inputs,
        gives: node.outputs.map((tensor) => tensor.name),
      };
    }),
    ...outputs.map(end("output")),
  ];
}

function endOf(kind, name, datatype, shape) {
  return { kind, label: name, notes: [typeText(datatype, shape)].filter(Boolean), takes: kind === "output" ? [name] : [], gives: kind === "input" ? [name] : [] };
}

function typeText(datatype, shape) {
  return `${datatype}${shape ? ` [${shape.map((size) => (size === -1 ? "?" : size)).join(", ")}]` : ""}`.trim();
}

function drawing(nodes) {
  const edges = edgesOf(nodes);
  const columns = placed(nodes, edges);
  const width = columns.length * WIDTH + (columns.length - 1) * GAP_X;
  const height = Math.max(...columns.map((column) => (column.length ? column.at(-1).y + column.at(-1).height : 0))) + GAP_Y;
  return h("div", { class: "scroll" }, s("svg", { width, height, class: "graph" }, edges.map(drawEdge), nodes.map(drawNode)));
}

/** From whom to whom tensors go, with their names. */
function edgesOf(nodes) {
  const givers = new Map();
  for (const node of nodes) for (const name of node.gives) givers.set(name, [...(givers.get(name) ?? []), node]);
  const edges = [];
  for (const to of nodes) {
    const found = new Map();
    for (const name of to.takes) for (const from of givers.get(name) ?? []) found.set(from, (found.get(from) ?? new Set()).add(name));
    for (const [from, tensors] of found) edges.push({ from, to, tensors: [...tensors] });
  }
  return edges;
}

/** Gives each node its place: right of all that it takes tensors from, and outputs last. Returns the columns. */
function placed(nodes, edges) {
  const following = new Map(nodes.map((node) => [node, []]));
  const waits = new Map(nodes.map((node) => [node, 0]));
  for (const node of nodes) node.column = node.kind === "input" ? 0 : 1;
  for (const { from, to } of edges) {
    following.get(from).push(to);
    waits.set(to, waits.get(to) + 1);
  }
  const ready = nodes.filter((node) => waits.get(node) === 0);
  for (const from of ready)
    for (const to of following.get(from)) {
      to.column = Math.max(to.column, from.column + 1);
      waits.set(to, waits.get(to) - 1);
      if (waits.get(to) === 0) ready.push(to); // in a circle no node is ever ready: those stay where they are
    }
  const last = Math.max(...nodes.map((node) => node.column));
  for (const node of nodes) if (node.kind === "output") node.column = last;
  const columns = Array.from({ length: last + 1 }, (_, at) => nodes.filter((node) => node.column === at));
  for (const column of columns) {
    let y = GAP_Y;
    for (const node of column) {
      node.x = node.column * (WIDTH + GAP_X);
      node.y = y;
      node.height = 25 + LINE * node.notes.length;
      y += node.height + GAP_Y;
    }
  }
  return columns;
}

function drawNode({ kind, label, notes, title, link, x, y, height }) {
  const parts = [
    s("title", null, title ?? label),
    s("rect", { x, y, width: WIDTH, height, rx: 6, class: kind }),
    s("text", { x: x + 8, y: y + 17 }, short(label)),
    notes.map((note, at) => s("text", { x: x + 8, y: y + 17 + LINE * (at + 1), class: "note" }, short(note))),
  ];
  return link ? s("a", { href: link }, parts) : s("g", null, parts);
}

function drawEdge({ from, to, tensors }) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + from.height / 2, to.x, to.y + to.height / 2];
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
