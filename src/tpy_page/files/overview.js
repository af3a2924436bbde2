// All models in a table, with sorting and a filter.

import { ask } from "./api.js";
import { act, modelLink, result, stateCell } from "./parts.js";
import { h, setText } from "./dom.js";
import { ago, bytes, number, percent, time } from "./format.js";
import { figure } from "./chart.js";
import { group } from "./store.js";

const ORDER = { failed: 0, loading: 1, ready: 2, idle: 3 };

/** Name, heading, value to sort by, text; `live` values change without the row. */
const COLUMNS = [
  { name: "name", heading: "Model", value: (m) => m.row.name, class: "model" },
  { name: "version", heading: "Version", value: (m) => Number(m.row.version || 0), text: (m) => m.row.version || "–" },
  { name: "state", heading: "State", value: (m) => ORDER[group(m.row)] },
  { name: "requests", heading: "Requests/s", value: (m) => m.now.requests, text: (m) => number(m.row.requests === undefined ? null : m.now.requests), class: "number" },
  { name: "failures", heading: "Failures/s", value: (m) => m.now.failures, text: (m) => number(m.row.requests === undefined ? null : m.now.failures), class: "number narrow-2" },
  { name: "latency", heading: "Latency", value: (m) => m.now.latency ?? -1, text: (m) => time(m.now.latency), class: "number narrow-1" },
  { name: "queue", heading: "Queue", value: (m) => m.now.queue ?? -1, text: (m) => time(m.now.queue), class: "number narrow-2" },
  { name: "compute", heading: "Compute", value: (m) => m.now.compute ?? -1, text: (m) => time(m.now.compute), class: "number narrow-2" },
  { name: "batch", heading: "Batch", value: (m) => m.now.batch ?? -1, text: (m) => number(m.now.batch), class: "number narrow-3" },
  { name: "memory", heading: "Memory", value: (m) => m.row.memory_bytes ?? 0, text: (m) => bytes(m.row.memory_bytes || null), class: "number narrow-3" },
  { name: "last", heading: "Last request", value: (m) => m.row.last_request_ms ?? 0, text: (m) => ago(m.row.last_request_ms), class: "number narrow-3" },
];

/** Columns before the state. A failed model has no figures: its state and its reason are across the other columns. */
const NAMING = 2;
/** A browser has some six connections to a server, and the overview needs one. */
const AT_ONCE = 4;

function tile(label, value, kind) {
  return h("div", { class: `tile ${kind ?? ""}` }, h("b", null, value), h("span", null, label));
}

const chosen = { sort: "name", down: false, filter: "", group: "all" };

export function overviewView({ store }) {
  const rows = new Map();
  const picked = new Set(); // names of models
  const tiles = h("section", { class: "tiles", "aria-label": "The server" });
  const charts = h("section", { class: "charts", "aria-label": "The last two minutes" });
  const body = h("tbody");
  const heads = COLUMNS.map((column) =>
    h("th", { class: column.class, scope: "col" }, h("button", { type: "button", onclick: () => sortBy(column.name) }, column.heading)),
  );
  const count = h("span", { class: "count", role: "status" });
  const filter = h("input", {
    id: "filter",
    type: "search",
    placeholder: "Filter by name or reason  ( / )",
    "aria-label": "Filter",
    value: chosen.filter,
    oninput: () => {
      chosen.filter = filter.value;
      arrange();
    },
  });
  const groups = h(
    "select",
    { "aria-label": "States", onchange: () => ((chosen.group = groups.value), arrange()) },
    [["all", "all states"], ["ready", "ready"], ["loading", "loading"], ["failed", "failed"], ["idle", "not loaded"]].map(([value, label]) =>
      h("option", { value, selected: value === chosen.group }, label),
    ),
  );
  const pickAll = h("input", { type: "checkbox", "aria-label": "Select all that are shown", onchange: () => pick(shown(), pickAll.checked) });
  const outcome = result();
  const buttons = [repositoryButton("load", "Load", "Loaded"), repositoryButton("unload", "Unload", "Unloaded")];
  const table = h("table", { class: "models" }, h("thead", null, h("tr", null, h("th", { class: "narrow-1", scope: "col" }, pickAll), heads)), body);
  const empty = h("p", { class: "empty", hidden: true });
  const element = h("div", null, tiles, charts, h("div", { class: "bar" }, filter, groups, count, buttons), outcome.element, table, empty);
  table.addEventListener("keydown", move);

  function sortBy(name) {
    chosen.down = chosen.sort === name ? !chosen.down : name !== "name" && name !== "state";
    chosen.sort = name;
    arrange();
  }

  function shown() {
    return [...store.models.values()].filter(matches).map((model) => model.row.name);
  }

  function pick(names, on) {
    for (const name of names) if (on) picked.add(name); else picked.delete(name);
    drawPicked();
  }

  function drawPicked() {
    for (const [key, made] of rows) made.pick.checked = picked.has(store.models.get(key)?.row.name);
    const names = shown();
    pickAll.checked = names.length > 0 && names.every((name) => picked.has(name));
    for (const button of buttons) if (!button.classList.contains("running")) button.disabled = picked.size === 0;
  }

  /** A button that does the same with all models that are picked. Those with which it fails stay picked. */
  function repositoryButton(path, label, done) {
    return h("button", { type: "button", disabled: true, onclick: ({ currentTarget }) => run(currentTarget) }, label);

    async function run(button) {
      button.classList.add("running");
      await act(button, outcome, async () => {
        const names = [...picked];
        const waiting = names.values();
        const failed = [];
        const work = async () => {
          for (const name of waiting) {
            try {
              await ask("POST", `v2/repository/models/${encodeURIComponent(name)}/${path}`, {});
              picked.delete(name);
            } catch (error) {
              failed.push(`${name}: ${error.message}`);
            }
          }
        };
        await Promise.all(Array.from({ length: AT_ONCE }, work));
        const said = `${done}: ${names.length - failed.length} of ${names.length}.`;
        if (failed.length) throw new Error([said, ...failed].join("\n"));
        return said;
      });
      button.classList.remove("running");
      drawPicked();
    }
  }

  /** Arrow keys go from model to model. */
  function move(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const row = event.target.closest("tbody tr");
    if (!step || !row?.[step]) return;
    event.preventDefault();
    row[step].querySelector(event.target.type === "checkbox" ? "input" : "a").focus();
  }

  function makeRow(model) {
    const cells = COLUMNS.map((column) => h("td", { class: column.class }));
    const check = h("input", { type: "checkbox", "aria-label": `Select ${model.row.name}`, onchange: () => pick([model.row.name], check.checked) });
    const reason = h("td", { colspan: COLUMNS.length - NAMING, hidden: true });
    const made = { element: h("tr", null, h("td", { class: "narrow-1" }, check), cells, reason), cells, pick: check, reason, shown: null };
    if (model.row.namespace) cells[0].append(h("span", { class: "note" }, `${model.row.namespace} :: `));
    cells[0].append(modelLink(model.row));
    return made;
  }

  function updateRow(model) {
    let made = rows.get(model.key);
    if (!made) rows.set(model.key, (made = makeRow(model)));
    COLUMNS.forEach((column, at) => column.text && setText(made.cells[at], column.text(model)));
    if (!made.shown || made.shown.state !== model.row.state || made.shown.reason !== model.row.reason) {
      const failed = group(model.row) === "failed";
      for (const cell of made.cells.slice(NAMING)) cell.hidden = failed;
      made.reason.hidden = !failed;
      for (const cell of [made.cells[NAMING], made.reason]) cell.replaceChildren();
      if (failed) made.reason.replaceChildren(stateCell(model.row), h("div", { class: "reason" }, model.row.reason.trim()));
      else made.cells[NAMING].replaceChildren(stateCell(model.row));
    }
    made.shown = model.row;
    return made.element;
  }

  function matches(model) {
    if (chosen.group !== "all" && group(model.row) !== chosen.group) return false;
    const words = chosen.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = `${model.row.name} ${model.row.reason ?? ""}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  /** Put the rows that match into their order, with as few moves as possible. */
  function arrange() {
    const column = COLUMNS.find((each) => each.name === chosen.sort);
    heads.forEach((head, at) => {
      if (COLUMNS[at] === column) head.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const found = [...store.models.values()].filter(matches);
    found.sort(
      (a, b) =>
        (chosen.down ? -1 : 1) * compare(column.value(a), column.value(b)) ||
        compare(a.row.name, b.row.name) ||
        compare(Number(a.row.version), Number(b.row.version)),
    );
    const focused = document.activeElement;
    let place = body.firstElementChild;
    for (const model of found) {
      const row = updateRow(model);
      if (row === place) place = place.nextElementSibling;
      else body.insertBefore(row, place);
    }
    while (place) {
      const next = place.nextElementSibling;
      place.remove();
      place = next;
    }
    if (focused !== document.activeElement && body.contains(focused)) focused.focus();
    drawPicked();
    setText(count, `${found.length} of ${store.models.size}`);
    empty.hidden = found.length > 0 || !store.server;
    setText(
      empty,
      store.models.size ? "No model matches." : "No models. tpy init NAME --from FILE makes a folder of a trained one, in the model repository.",
    );
  }

  function drawTiles() {
    const { ready, loading, failed, idle } = store.counts();
    const { now } = store.total;
    tiles.replaceChildren(
      tile(store.server.ready ? "server ready" : "server not ready", store.server.ready ? "✓" : "✗", store.server.ready ? "good" : "bad"),
      tile("ready", String(ready), "good"),
      tile("loading", String(loading), loading ? "busy" : ""),
      tile("failed", String(failed), failed ? "bad" : ""),
      tile("not loaded", String(idle)),
      tile("requests/s", number(now.requests)),
      tile("failures/s", number(now.failures), now.failures ? "bad" : ""),
      tile("mean latency", time(now.latency)),
      ...machineTiles(),
    );
  }

  /** CPU, memory and GPUs of the machine that the server runs on. */
  function machineTiles() {
    const { cpu, memory_used_bytes: used, memory_total_bytes: total, gpus = [] } = store.server.machine ?? {};
    if (total === undefined) return [];
    return [tile("CPU of the machine", percent(cpu)), tile(`of ${bytes(total)} memory`, bytes(used)), ...gpus.flatMap(gpuTiles)];
  }

  function gpuTiles({ id, utilization, memory_used_bytes: used, memory_total_bytes: total }) {
    const memory = total === null ? [] : [tile(`of ${bytes(total)} on GPU ${id}`, bytes(used))];
    return [tile(`GPU ${id}`, percent(utilization)), ...memory];
  }

  function drawCharts() {
    const { history } = store.total;
    const points = (name) => history.map((point) => ({ at: point.at, value: point[name] }));
    charts.replaceChildren(
      figure("Requests/s", [{ label: "served", points: points("requests") }, { label: "failed", points: points("failures") }], store.at, number),
      figure("Mean latency", ["latency", "queue", "compute"].map((name) => ({ label: name === "latency" ? "total" : name, points: points(name) })), store.at, time),
    );
  }

  return {
    title: "Models",
    element,
    update() {
      if (!store.server) return;
      drawTiles();
      drawCharts();
      for (const key of rows.keys()) if (!store.models.has(key)) rows.delete(key);
      arrange();
    },
  };
}
