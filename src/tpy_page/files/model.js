// One model: versions, live charts, instances, try it, inputs and outputs, configuration, load and unload.

import { ask, modelPath } from "./api.js";
import { figure, pace, timeline } from "./chart.js";
import { chat, takesChats } from "./chat.js";
import { configurationView } from "./configuration.js";
import { h, setText } from "./dom.js";
import { configurationEditor, versionList } from "./editor.js";
import { ago, bytes, number, time } from "./format.js";
import { ensembleGraph, fileGraph } from "./graph.js";
import { act, modelHash, result, stateCell } from "./parts.js";
import { rolloutView } from "./rollout.js";
import { group } from "./store.js";
import { tryIt } from "./try.js";

const LOOK_MS = 2000;
const LATENCIES_MAX = 150;
const LABELS_MAX = 2000;

export function modelView({ store }, name, wanted) {
  const stopped = new AbortController();
  const outcome = result();
  const heading = h("h1", null, name, " ");
  const state = h("span");
  const versions = h("div", { class: "versions", "aria-label": "Versions" });
  const charts = h("section", { class: "charts", "aria-label": "The last two minutes" });
  const sections = h("div");
  const instances = h("section", { hidden: true, "aria-label": "Instances" });
  const batches = h("section", { hidden: true, "aria-label": "Batch sizes" });
  const totals = h("p", { class: "totals" });
  const rollout = rolloutView(name, stopped.signal);
  const folders = versionList(name, stopped.signal);
  const button = (label, path, said) =>
    h("button", { type: "button", onclick: (event) => act(event.currentTarget, outcome, async () => (await ask("POST", path, {}), said)) }, label);
  const repository = `v2/repository/models/${encodeURIComponent(name)}`;
  const element = h(
    "div",
    null,
    h(
      "div",
      { class: "title" },
      heading,
      state,
      h("span", { class: "actions" }, button("Load", `${repository}/load`, "Loaded."), button("Unload", `${repository}/unload`, "Unloaded.")),
    ),
    outcome.element,
    versions,
    totals,
    rollout.element,
    charts,
    instances,
    batches,
    folders.element,
    sections,
    configurationEditor(name, stopped.signal),
  );
  let described = "";
  let shownVersions = "";
  const latencies = []; // percentiles of the last ten seconds, as the server explains them

  /** The versions of this model, and the one that is shown: the newest that is ready unless the address says another. */
  function chosen() {
    const all = store.versions(name).sort((a, b) => Number(b.row.version) - Number(a.row.version));
    const one = all.find((m) => m.row.version === wanted) ?? all.find((m) => m.row.state === "READY") ?? all[0];
    return { all, one };
  }

  function drawCharts(model) {
    const points = (key) => model.history.map((point) => ({ at: point.at, value: point[key] }));
    const chart = (title, format, ...series) =>
      figure(title, series.map(([label, key, missing]) => ({ label, points: points(key), missing })), store.at, format, format === bytes);
    const memory = model.row.memory_bytes;
    charts.replaceChildren(
      chart("Requests/s", number, ["served", "requests", 0], ["failed", "failures", 0]),
      figure("Latency, percentiles of 10 s", ["p50", "p90", "p99"].map((label) => ({ label, points: latencies.map((each) => ({ at: each.at, value: each[label] })), gap: 3 * pace.gap })), store.at, time),
      chart("Mean of queue and compute", time, ["queue", "queue"], ["compute", "compute"]),
      chart("Batch size", number, ["mean", "batch"]),
      memory ? chart("Memory", bytes, ["reserved", "memory", memory]) : "",
    );
  }

  /** What the version can be asked for: again when it is another one, or was loaded again. */
  async function describe(row) {
    const key = `${row.version} ${row.state}`;
    if (key === described) return;
    described = key;
    if (row.state !== "READY") {
      sections.replaceChildren();
      return;
    }
    try {
      const path = modelPath(name, row.version);
      const [metadata, configuration] = await Promise.all([ask("GET", path), ask("GET", `${path}/config`)]);
      if (described !== key) return;
      sections.replaceChildren(takesChats(metadata, configuration) ? chat(metadata, row.version, stopped.signal) : "", tryIt(metadata, configuration, row.version, stopped.signal), tensors(metadata, configuration, path), ensembleGraph(configuration), fileGraph(configuration, path), configurationView(configuration));
    } catch (error) {
      if (described !== key) return;
      if (!error.status || error.status >= 500) described = ""; // the next look at the models asks again
      sections.replaceChildren(h("p", { class: "result bad" }, `It cannot be described: ${error.message}`));
    }
  }

  async function look() {
    const { one } = chosen();
    if (!document.hidden && one?.row.state === "READY") {
      await Promise.all([lookAtBatches(one.row.version), lookAtInstances(one.row.version)]);
    }
    if (!stopped.signal.aborted) setTimeout(look, LOOK_MS);
  }

  async function lookAtBatches(version) {
    try {
      const { model_stats: found } = await ask("GET", `${modelPath(name, version)}/stats`, undefined, { signal: stopped.signal });
      const rows = found[0].batch_stats.map((each) => ({
        size: each.batch_size,
        count: each.compute_infer.count,
        mean: each.compute_infer.count ? each.compute_infer.ns / each.compute_infer.count / 1e6 : null,
      }));
      batches.hidden = rows.length === 0;
      const most = Math.max(...rows.map((row) => row.count));
      batches.replaceChildren(
        h("h2", null, "Batches since it was loaded"),
        h(
          "table",
          { class: "batches" },
          h("thead", null, h("tr", null, h("th", null, "Size"), h("th", null, "Batches"), h("th", null), h("th", null, "Mean execution"))),
          h("tbody", null, rows.map((row) => h("tr", null, h("td", null, String(row.size)), h("td", null, number(row.count)), h("td", { class: "meter" }, h("meter", { min: 0, max: most, value: row.count })), h("td", null, time(row.mean))))),
        ),
      );
    } catch {
      batches.hidden = true; // without the role for it, or unloaded meanwhile
    }
  }

  function noteLatency(version, { requests, total }) {
    const value = (name) => (requests ? total[`${name}_ns`] / 1e6 : null);
    if (latencies.at(-1)?.version !== version) latencies.length = 0;
    latencies.push({ version, at: store.at, p50: value("p50"), p90: value("p90"), p99: value("p99") });
    if (latencies.length > LATENCIES_MAX) latencies.shift();
  }

  async function lookAtInstances(version) {
    try {
      const { explanations } = await ask("GET", `${modelPath(name, version)}/explain`, undefined, { signal: stopped.signal });
      drawInstances(instances, explanations[0]);
      rollout.update(explanations[0].rollout);
      noteLatency(version, explanations[0].latency);
      instances.hidden = false;
    } catch {
      instances.hidden = true;
      rollout.update(null);
    }
  }

  /** Links to the versions; as they are while nothing changes, so that they can be pressed and keep the focus. */
  function drawVersions(all, one) {
    const shown = JSON.stringify([one.row.version, ...all.map(({ row }) => [row.version, row.state, row.reason])]);
    if (shown === shownVersions) return;
    shownVersions = shown;
    versions.replaceChildren(
      ...all.map((m) =>
        h(
          "a",
          { href: modelHash(name, m.row.version), "aria-current": m === one ? "true" : null },
          m.row.version ? `version ${m.row.version}: ` : "",
          stateCell(m.row),
          group(m.row) === "failed" ? h("span", { class: "reason" }, m.row.reason) : "",
        ),
      ),
    );
  }

  look();
  return {
    title: name,
    element,
    close: () => stopped.abort(),
    update() {
      if (!store.server) return;
      const { all, one } = chosen();
      if (!one) {
        state.replaceChildren();
        setText(totals, "There is no model of this name.");
        for (const each of [charts, sections, versions]) each.replaceChildren();
        shownVersions = "";
        folders.update([]);
        return;
      }
      state.replaceChildren(stateCell(one.row));
      drawVersions(all, one);
      folders.update(all.map((m) => m.row));
      if ("requests" in one.row) {
        const { row } = one;
        setText(totals, `${row.requests.toLocaleString("en")} requests, ${row.failures.toLocaleString("en")} failures, ${row.executions.toLocaleString("en")} executions; last request ${ago(row.last_request_ms)}`);
        drawCharts(one);
      } else {
        setText(totals, "");
        charts.replaceChildren();
      }
      describe(one.row);
    },
  };
}

/** The labels of an output, asked for when they are to be seen. */
function labelList(path, output, file) {
  const list = h("ol", { class: "labels", start: 0 });
  const element = h("details", null, h("summary", null, file), list);
  element.addEventListener("toggle", async () => {
    if (!element.open || list.childElementCount) return;
    try {
      const { labels } = await ask("GET", `${path}/labels`);
      list.replaceChildren(...(labels[output] ?? []).slice(0, LABELS_MAX).map((text) => h("li", null, text)));
    } catch (error) {
      list.replaceChildren(h("li", { class: "bad" }, error.message));
    }
  });
  return element;
}

function tensors(metadata, configuration, path) {
  const files = new Map((configuration.output ?? []).map((each) => [each.name, each.label_filename]));
  const table = (title, list) =>
    h(
      "table",
      null,
      h("thead", null, h("tr", null, h("th", null, title), h("th", null, "Type"), h("th", null, "Shape"), h("th", null, "Labels"))),
      h("tbody", null, list.map((each) => h("tr", null, h("td", null, each.name), h("td", null, each.datatype), h("td", null, `[${each.shape.join(", ")}]`), h("td", null, files.get(each.name) ? labelList(path, each.name, files.get(each.name)) : "–")))),
    );
  return h("section", null, h("h2", null, "Inputs and outputs"), h("p", { class: "note" }, "-1 is a dimension that each request chooses."), table("Input", metadata.inputs), table("Output", metadata.outputs));
}

const SPAN_MS = 10_000;

function drawInstances(element, found) {
  const to = found.now_ns / 1e6;
  const rows = (found.instances ?? []).map((each) => ({
    label: `${each.name} (${each.state})`,
    bars: [
      ...(each.recent ?? []).map((batch) => ({
        begin: batch.begin_ns / 1e6,
        end: batch.end_ns / 1e6,
        size: batch.batch_size,
        title: `batch of ${batch.batch_size}, ${time((batch.end_ns - batch.begin_ns) / 1e6)}`,
      })),
      ...(each.executing_ns ? [{ begin: to - each.executing_ns / 1e6, end: to, size: 1, title: `executes for ${time(each.executing_ns / 1e6)}` }] : []),
    ],
  }));
  const newest = Math.max(0, ...rows.flatMap((row) => row.bars.map((bar) => bar.end)));
  const oldest = Math.min(newest, ...rows.flatMap((row) => row.bars.map((bar) => bar.begin)));
  element.replaceChildren(
    h("h2", null, "Instances"),
    timeline(rows, { to: newest && newest < to - SPAN_MS ? newest : to, span: Math.max(1, Math.min(SPAN_MS, to - oldest)) }),
    h("p", { class: "note" }, `${found.activity.queue.waits_for === "nothing" ? "No request waits." : `The next request waits for: ${found.activity.queue.waits_for.replaceAll("_", " ")}.`} Darker bars are larger batches.`),
    h("ul", null, (found.advice ?? []).map((text) => h("li", null, text))),
  );
}
