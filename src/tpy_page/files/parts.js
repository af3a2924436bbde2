// Parts that several views have.

import { h } from "./dom.js";
import { group } from "./store.js";

export function modelHash(name, version) {
  return `#/models/${encodeURIComponent(name)}${version ? `/${version}` : ""}`;
}

export function modelLink(row) {
  return h("a", { href: modelHash(row.name, row.version) }, row.name);
}

export function stateCell(row) {
  const words = { ready: "ready", loading: (row.state ?? "").toLowerCase(), failed: "failed", idle: "not loaded" };
  return h("span", { class: `state ${group(row)}` }, words[group(row)]);
}

/** A place for what an action led to. */
export function result() {
  const element = h("p", { class: "result", role: "status", hidden: true });
  return {
    element,
    say(text, kind = "") {
      element.hidden = !text;
      element.className = `result ${kind}`;
      element.textContent = text;
    },
  };
}

/** Run an action of a button: it is disabled meanwhile, which takes the focus, and gets it back; an error is said. */
export async function act(button, outcome, action) {
  const focused = document.activeElement === button;
  button.disabled = true;
  outcome.say("…");
  try {
    outcome.say((await action()) ?? "Done.", "good");
  } catch (error) {
    outcome.say(error.message, "bad");
  } finally {
    button.disabled = false;
    if (focused && document.activeElement === document.body) button.focus({ preventScroll: true });
  }
}
