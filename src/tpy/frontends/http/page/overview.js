// All models in a table, with sorting and a filter.

import { modelLink, stateCell } from "./parts.js";
import { h, setText } from "./dom.js";
import { ago, bytes, number, time } from "./format.js";
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

const chosen = { sort: "name", down: false, filter: "", group: "all" };

export function overviewView({ store }) {
  const rows = new Map();
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
  const table = h("table", { class: "models" }, h("thead", null, h("tr", null, heads)), body);
  const empty = h("p", { class: "empty", hidden: true });
  const element = h("div", null, tiles, charts, h("div", { class: "bar" }, filter, groups, count), table, empty);
  table.addEventListener("keydown", move);

  function sortBy(name) {
    chosen.down = chosen.sort === name ? !chosen.down : name !== "name" && name !== "state";
    chosen.sort = name;
    arrange();
  }

  /** Arrow keys go from model to model. */
  function move(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const row = event.target.closest("tbody tr");
    if (!step || !row?.[step]) return;
    event.preventDefault();
    row[step].querySelector("a").focus();
  }

  function makeRow(model) {
    const cells = COLUMNS.map((column) => h("td", { class: column.class }));
    const made = { element: h("tr", null, cells), cells, shown: null };
    if (model.row.namespace) cells[0].append(h("span", { class: "note" }, `${model.row.namespace} :: `));
    cells[0].append(modelLink(model.row));
    return made;
  }

  function updateRow(model) {
    let made = rows.get(model.key);
    if (!made) rows.set(model.key, (made = makeRow(model)));
    COLUMNS.forEach((column, at) => column.text && setText(made.cells[at], column.text(model)));
    if (!made.shown || made.shown.state !== model.row.state || made.shown.reason !== model.row.reason) {
      made.cells[2].replaceChildren(stateCell(model.row));
      made.cells[0].querySelector(".reason")?.remove();
      if (group(model.row) === "failed") made.cells[0].append(h("div", { class: "reason", title: model.row.reason }, model.row.reason.split("\n")[0]));
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
    const tile = (label, value, kind) => h("div", { class: `tile ${kind ?? ""}` }, h("b", null, value), h("span", null, label));
    tiles.replaceChildren(
      tile(store.server.ready ? "server ready" : "server not ready", store.server.ready ? "✓" : "✗", store.server.ready ? "good" : "bad"),
      tile("ready", String(ready), "good"),
      tile("loading", String(loading), loading ? "busy" : ""),
      tile("failed", String(failed), failed ? "bad" : ""),
      tile("not loaded", String(idle)),
      tile("requests/s", number(now.requests)),
      tile("failures/s", number(now.failures), now.failures ? "bad" : ""),
      tile("mean latency", time(now.latency)),
    );
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
