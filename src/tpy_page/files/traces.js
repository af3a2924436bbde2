// Trace settings of the server, and the newest traces as waterfalls.

import { ask } from "./api.js";
import { h, setFields, setText } from "./dom.js";
import { time } from "./format.js";
import { act, modelHash, result } from "./parts.js";
import { phases, span, waterfall } from "./waterfall.js";

const WORDS = {
  trace_rate: "one of so many requests is traced",
  trace_count: "so many more traces are taken; -1: any number",
  log_frequency: "traces in one file; 0: all in one, written at the end",
  trace_file: "where they go; it cannot be changed here",
};
const LEVELS = ["TIMESTAMPS", "TENSORS"];
const LOOK_MS = 2000;
const SHOWN_MAX = 64;

export function tracesView() {
  const stopped = new AbortController();
  const outcome = result();
  const reading = result();
  const form = h("form", { class: "settings column", onsubmit: change });
  const filter = h("input", { id: "filter", type: "search", placeholder: "Filter by model or request id  ( / )", "aria-label": "Filter", oninput: sift });
  const body = h("tbody");
  const table = h(
    "table",
    { class: "traces" },
    h("thead", null, h("tr", null, ["Trace", "Model", "Request id", "Status", "Took"].map((name) => h("th", { scope: "col" }, name)))),
    body,
  );
  const empty = h("p", { class: "empty note" });
  const chosen = h("section", { "aria-label": "Waterfall", "aria-live": "polite" });
  let traces = [];
  let after = 0;

  function fields(found, levels) {
    return [
      h("fieldset", null, h("legend", null, "What is traced"), LEVELS.map((name) => h("label", { class: "inline" }, h("input", { type: "checkbox", name, checked: levels[name] }), ` ${name}`))),
      ...Object.keys(WORDS)
        .filter((name) => name in found)
        .map((name) => h("label", null, h("code", null, name), " ", h("input", { name, value: found[name], readonly: name === "trace_file", spellcheck: "false" }), h("span", { class: "words" }, ` ${WORDS[name]}`))),
      h("button", { type: "submit" }, "Apply"),
    ];
  }

  function draw(found) {
    const levels = Object.fromEntries(LEVELS.map((name) => [name, (found.trace_level ?? []).includes(name)]));
    if (form.childElementCount) setFields(form, { ...found, ...levels });
    else form.append(...fields(found, levels));
    const off = found.trace_level?.[0] === "OFF";
    const hint = found.trace_file === "" ? "The server was started without a trace file, and traces nothing: start it with --trace-config triton,file=trace.json." : off ? "Nothing is traced: switch TIMESTAMPS on above." : "Requests that are traced come here when they are over.";
    setText(empty, hint);
  }

  async function change(event) {
    event.preventDefault();
    await act(event.submitter, outcome, async () => {
      const { elements } = form;
      const levels = LEVELS.filter((name) => elements[name].checked);
      const values = { trace_level: levels.length ? levels : ["OFF"] };
      for (const name of ["trace_rate", "trace_count", "log_frequency"]) if (elements[name]) values[name] = elements[name].value;
      draw(await ask("POST", "v2/trace/setting", values));
      return "Applied.";
    });
  }

  function matches({ parts: [root] }) {
    return `${root.model_name} ${root.request_id}`.toLowerCase().includes(filter.value.toLowerCase());
  }

  function row(trace) {
    const [root] = trace.parts;
    const { total } = span(trace.parts);
    const open = h("button", { type: "button", onclick: () => show(trace) }, String(trace.number));
    const made = h(
      "tr",
      null,
      h("td", null, open),
      h("td", null, h("a", { href: modelHash(root.model_name) }, root.model_name), root.model_version > 0 ? ` version ${root.model_version}` : ""),
      h("td", null, root.request_id || "–"),
      h("td", { class: root.status === "OK" ? "good" : "bad", title: root.error || null }, root.status),
      h("td", { class: "number" }, time(total / 1e6)),
    );
    made.hidden = !matches(trace);
    return made;
  }

  function sift() {
    traces.forEach((trace, at) => (body.children[traces.length - 1 - at].hidden = !matches(trace)));
  }

  function show(trace) {
    const [root] = trace.parts;
    const rows = trace.parts.map((part) => h("tr", null, h("td", null, part.model_name), phases(part).map(([name, begin, end]) => h("td", null, `${name} ${time((end - begin) / 1e6)}`))));
    chosen.replaceChildren(
      h("h2", null, `Trace ${trace.number}: ${root.model_name}`, root.request_id ? `, request ${root.request_id}` : ""),
      root.error ? h("p", { class: "reason" }, root.error) : "",
      waterfall(trace.parts),
      h("details", null, h("summary", null, "Times"), h("div", { class: "scroll" }, h("table", null, h("tbody", null, rows)))),
      trace.left_out ? h("p", { class: "note" }, `${trace.left_out} more steps and calls are in the trace file only.`) : "",
    );
    chosen.scrollIntoView({ block: "nearest" });
  }

  async function look() {
    if (stopped.signal.aborted) return;
    try {
      if (!document.hidden) {
        const found = (await ask("GET", `v2/trace/recent?after=${after}`, undefined, { signal: stopped.signal })).traces;
        for (const trace of found) {
          after = trace.number;
          traces.push(trace);
          body.prepend(row(trace));
        }
        for (; traces.length > SHOWN_MAX; traces.shift()) body.lastElementChild.remove();
        table.hidden = !traces.length;
        empty.hidden = traces.length > 0;
        reading.say("");
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      table.hidden = !traces.length;
      reading.say(`The traces cannot be shown: ${error.message}`, "bad");
      if (error.status === 0) [after, traces] = [0, []]; // another server counts anew
      else if (error.status < 500 || error.status === 501) return;
      if (!after) body.replaceChildren();
    }
    setTimeout(look, LOOK_MS);
  }

  ask("GET", "v2/trace/setting", undefined, { signal: stopped.signal }).then(draw, (error) => error.name === "AbortError" || outcome.say(error.message, "bad"));
  look();
  return {
    title: "Traces",
    element: h("div", null, h("h1", null, "Traces"), form, outcome.element, h("h2", null, "Newest"), h("div", { class: "bar" }, filter), reading.element, chosen, h("div", { class: "newest" }, table), empty),
    close: () => stopped.abort(),
  };
}
