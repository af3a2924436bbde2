// The configuration in force, as a tree with a word on each field.

import { copyButton, h } from "./dom.js";
import { FIELDS } from "./fields.js";

export function configurationView(configuration) {
  const text = JSON.stringify(configuration, null, 2);
  const all = h("input", { type: "checkbox", onchange: () => draw() });
  const tree = h("div", { class: "tree" });
  const draw = () => tree.replaceChildren(...members(configuration, all.checked));
  draw();
  return h(
    "section",
    { class: "configuration" },
    h("h2", null, "Configuration"),
    h("label", { class: "inline" }, all, " with fields that are empty or 0"),
    tree,
    h("details", { class: "code" }, h("summary", null, "JSON"), h("pre", null, text), copyButton(() => text)),
  );
}

function isEmpty(value) {
  if (Array.isArray(value)) return value.length === 0;
  if (value && typeof value === "object") return Object.values(value).every(isEmpty);
  return value === "" || value === 0 || value === "0" || value === false || value === null;
}

/** Fields whose members are named by whoever writes the configuration. */
const MAPS = new Set(["parameters", "properties", "metric_tags", "cc_model_filenames", "input_map", "output_map", "inputs", "priority_queue_policy"]);

function members(object, all, parent = "", areKeys = false) {
  return Object.entries(object)
    .filter(([, value]) => all || !isEmpty(value))
    .map(([name, value]) => member(name, value, all, parent, areKeys));
}

/** A field of `parent`, the field that it is in; "" for one of the whole. `isKey`: `parent` is a map. */
function member(name, value, all, parent, isKey) {
  const text = isKey ? "" : FIELDS[`${parent}.${name}`] ?? FIELDS[name];
  const words = text ? h("span", { class: "words" }, text) : "";
  if (value === null || typeof value !== "object") return h("div", null, h("code", null, name), " ", h("b", null, String(value)), " ", words);
  const elements = Array.isArray(value) ? value : null;
  const inner = elements ? (elements.every((each) => typeof each !== "object") ? null : elements.map((each, at) => element(each?.name || String(at), each, all, name))) : isKey ? members(value, all, parent) : members(value, all, name, MAPS.has(name));
  if (inner === null) return h("div", null, h("code", null, name), " ", h("b", null, `[${value.join(", ")}]`), " ", words);
  return h("details", { open: true }, h("summary", null, h("code", null, name), " ", words), inner.length ? inner : h("div", { class: "note" }, "defaults"));
}

/** An element of the list `parent`. */
function element(label, value, all, parent) {
  return h("details", { open: true }, h("summary", null, h("code", null, label)), members(value, all, parent));
}
