// The versions of a model, and its configuration to change: checked by the server, and loaded with.

import { ask, modelPath } from "./api.js";
import { h, setText } from "./dom.js";
import { act, result, stateCell } from "./parts.js";

const repository = (name, action) => `v2/repository/models/${encodeURIComponent(name)}/${action}`;

/** Ask what is wrong with a configuration; without one, with that of the repository. */
function check(name, config, signal) {
  return ask("POST", repository(name, "check"), config === undefined ? {} : { parameters: { config } }, { signal });
}

function load(name, config) {
  return ask("POST", repository(name, "load"), { parameters: { config: typeof config === "string" ? config : JSON.stringify(config) } });
}

/** The version folders, each with its state, and what may be done with it. `update` is told of the rows of the overview. */
export function versionList(name, signal) {
  const outcome = result();
  const body = h("tbody");
  const element = h(
    "section",
    { class: "version-list", hidden: true, "aria-label": "Version folders" },
    h("h2", null, "Versions"),
    h("table", null, h("thead", null, h("tr", null, ["Version", "State", ""].map((text) => h("th", { scope: "col" }, text)))), body),
    outcome.element,
  );
  let folders = [];
  let rows = [];
  const made = new Map(); // what a version has on the page, which stays while its state changes

  const state = (version) => rows.find((row) => row.version === version);
  const served = () => rows.filter((row) => row.state === "READY").map((row) => row.version);

  /** Load so that just these versions are served, with the configuration in force, or else the repository's. */
  async function serve(versions) {
    if (!versions.length) return ask("POST", repository(name, "unload"), {});
    const [ready] = served();
    const config = ready ? await ask("GET", `${modelPath(name, ready)}/config`) : (await check(name)).config;
    if (!config) throw new Error("the configuration in the repository cannot be read: see below");
    return load(name, { ...config, version_policy: { specific: { versions: versions.map(Number).sort((a, b) => a - b) } } });
  }

  function button(version, label, versions) {
    return h("button", {
      type: "button",
      onclick(event) {
        const said = `${label()}: version ${version}.`;
        act(event.currentTarget, outcome, async () => (await serve(versions()), said));
      },
    });
  }

  function setLabel(element, text, version) {
    setText(element, text);
    element.setAttribute("aria-label", `${text} version ${version}`);
  }

  function make(version) {
    const label = () => (state(version)?.state === "READY" ? "Stop" : "Serve");
    const others = () => served().filter((each) => each !== version);
    const change = button(version, label, () => (label() === "Stop" ? others() : [...others(), version]));
    const only = button(version, () => "Serve only", () => [version]);
    const cell = h("td");
    setLabel(only, "Serve only", version);
    let shown = "";
    return {
      element: h("tr", null, h("td", null, version), cell, h("td", { class: "actions" }, change, only)),
      update() {
        const row = state(version) ?? {};
        const key = JSON.stringify([row.state, row.reason]);
        if (key !== shown) cell.replaceChildren(stateCell(row));
        shown = key;
        setLabel(change, label(), version);
        only.hidden = label() === "Stop" && rows.length < 2;
      },
    };
  }

  function draw() {
    const all = [...new Set([...folders, ...rows.map((row) => row.version).filter(Boolean)])].sort((a, b) => b - a);
    element.hidden = !all.length;
    for (const version of made.keys()) if (!all.includes(version)) made.delete(version);
    const wanted = all.map((version) => {
      if (!made.has(version)) made.set(version, make(version));
      return made.get(version).element;
    });
    if (wanted.length !== body.children.length || wanted.some((each, at) => each !== body.children[at])) body.replaceChildren(...wanted);
    for (const each of made.values()) each.update();
  }

  async function read() {
    try {
      folders = (await check(name, undefined, signal)).versions;
      draw();
    } catch {
      // without the role for it: what the overview says is shown all the same
    }
  }

  read();
  return {
    element,
    update(found) {
      rows = found;
      draw();
    },
  };
}

/** A text to change, what the server says about it, and a load with it. */
export function configurationEditor(name, signal) {
  const outcome = result();
  const found = h("ul", { class: "problems", "aria-label": "Problems" });
  const text = h("textarea", { spellcheck: "false", "aria-label": "Configuration", oninput: () => outcome.say("") });
  const button = (label, action, kind) => h("button", { type: "button", class: kind, onclick: (event) => act(event.currentTarget, outcome, action) }, label);
  const element = h(
    "details",
    { class: "editor-section" },
    h("summary", null, "Change the configuration"),
    h(
      "div",
      { class: "editor" },
      h("p", { class: "note" }, "JSON, or the form of a config.pbtxt. It holds until the model is loaded without it; the file in the repository stays as it is."),
      text,
      h("p", { class: "actions" }, button("Validate", validate), button("Load with it", loadWithIt, "primary"), button("As in force", () => fromServer()), button("As in the repository", () => fromFile())),
      outcome.element,
      found,
    ),
  );
  element.addEventListener("toggle", () => element.open && !text.value && fromServer({ first: true }).catch((error) => outcome.say(error.message, "bad")));

  function mark(line) {
    const lines = text.value.split("\n");
    const begin = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(begin, begin + (lines[line - 1]?.length ?? 0));
  }

  function show(problems) {
    found.replaceChildren(
      ...problems.map((each) =>
        h(
          "li",
          { class: each.severity },
          each.line ? h("button", { type: "button", onclick: () => mark(each.line) }, `line ${each.line}`) : "",
          " ",
          each.field ? h("code", null, each.field) : "",
          ` ${each.message}${each.expected ? `; expected ${each.expected}` : ""}`,
        ),
      ),
    );
    return problems.filter((each) => each.severity === "error").length;
  }

  async function examine() {
    const checked = await check(name, text.value, signal);
    const errors = show(checked.problems);
    if (errors) throw new Error(errors === 1 ? "There is an error." : `There are ${errors} errors.`);
    return checked;
  }

  async function validate() {
    const { selected } = await examine();
    return `It is valid, and selects version${selected.length > 1 ? "s" : ""} ${selected.join(", ")}.`;
  }

  async function loadWithIt() {
    const { config } = await examine();
    await load(name, text.value.trimStart().startsWith("{") ? text.value : config);
    return "Loaded with it.";
  }

  /** `first`: the text is only filled in, and what somebody has typed meanwhile stays. */
  async function fromServer({ first = false } = {}) {
    let inForce;
    try {
      inForce = JSON.stringify(await ask("GET", `${modelPath(name)}/config`, undefined, { signal }), null, 2);
    } catch (error) {
      if (error.status !== 400 && error.status !== 404 && error.status !== 503) throw error;
      return fromFile({ first }); // it is not loaded
    }
    if (first && text.value) return "";
    text.value = inForce;
    show([]);
    return "The configuration in force.";
  }

  async function fromFile({ first = false } = {}) {
    const { text: written, problems, file } = await check(name, undefined, signal);
    if (first && text.value) return "";
    text.value = written;
    show(problems);
    return file ? `As ${file} says.` : "The repository has none: it follows from the model's files.";
  }

  return element;
}
