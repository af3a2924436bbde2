// The recording of requests: start, stop, how far it is.

import { ask, root } from "./api.js";
import { copyButton, h, setText } from "./dom.js";
import { ago, bytes, number, time } from "./format.js";
import { act, result } from "./parts.js";

const PAUSE_MS = 2000;

/** A word of a shell's command. */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The address of this server, as tpy takes one. */
function address() {
  const port = root.port || (root.protocol === "https:" ? 443 : 80);
  return `${root.protocol === "https:" ? "https://" : ""}${root.hostname}:${port}`;
}

const KEPT = { full: "all elements", hash: "a hash of the elements", none: "no elements" };

export function recordingView() {
  const stopped = new AbortController();
  const outcome = result();
  const status = h("p", { class: "totals", role: "status" });
  const files = h("tbody");
  const list = h(
    "section",
    { hidden: true, "aria-label": "Files" },
    h("h2", null, "Files"),
    h("p", { class: "note" }, "On the machine of the server. The command sends one to this server again, or with another address to that one, and compares the answers."),
    h("table", null, h("thead", null, h("tr", null, ["Written", "Size", "Replay"].map((heading) => h("th", { scope: "col" }, heading)))), files),
  );
  const models = h("input", { name: "models", value: "*", spellcheck: "false" });
  const sample = h("input", { name: "sample", type: "number", min: 1, value: 1 });
  const kept = (name) => h("select", { name }, Object.entries(KEPT).map(([value, words]) => h("option", { value }, words)));
  const [inputs, outputs] = [kept("inputs"), kept("outputs")];
  const start = h("button", { type: "submit", class: "primary" }, "Start");
  const stop = h("button", { type: "button", onclick: () => change(stop, { action: "stop" }, "Stopped.") }, "Stop");
  const form = h(
    "form",
    {
      class: "settings column",
      onsubmit(event) {
        event.preventDefault();
        const names = models.value.split(/[\s,]+/).filter(Boolean);
        change(start, { action: "start", models: names, sample: Number(sample.value), inputs: inputs.value, outputs: outputs.value }, "It records.");
      },
    },
    h("label", null, "Models, names or patterns ", models),
    h("label", null, "One request in ", sample),
    h("label", null, "Of inputs ", inputs),
    h("label", null, "Of outputs ", outputs),
    h("p", { class: "actions" }, start, stop),
  );

  function draw(found) {
    start.disabled = found.state === "recording" || found.state === "off" && !found.directory;
    stop.disabled = found.state !== "recording";
    const file = found.file ? `${found.file}: ${number(found.requests)} requests, ${bytes(found.bytes)}, ${time(found.seconds * 1000)}` : "";
    const lost = found.dropped ? `, ${number(found.dropped)} dropped` : "";
    const where = found.directory ? `Files are in ${found.directory}.` : "The server was started without --recording-directory: nothing can be recorded.";
    drawFiles(found);
    status.textContent = [`State: ${found.state}.`, file + lost, found.reason, where].filter(Boolean).join(" ");
  }

  /** A row for each file; those that are there stay, so that their buttons can be pressed while others come. */
  function drawFiles({ directory, files: found }) {
    list.hidden = found.length === 0;
    const rows = new Map([...files.children].map((row) => [row.dataset.name, row]));
    const wanted = found.map((file) => {
      const row = rows.get(file.name) ?? fileRow(file.name, directory);
      setText(row.children[0], ago(file.modified_ms));
      setText(row.children[1], bytes(file.bytes));
      return row;
    });
    if (wanted.length !== files.children.length || wanted.some((row, at) => row !== files.children[at])) files.replaceChildren(...wanted);
  }

  function fileRow(name, directory) {
    const command = `tpy replay ${quoted(`${directory}/${name}`)} --url ${quoted(address())}`;
    return h("tr", { "data-name": name }, h("td"), h("td", { class: "number" }), h("td", null, h("pre", { class: "wrapped" }, command), copyButton(() => command)));
  }

  async function change(button, document, words) {
    await act(button, outcome, async () => {
      draw(await ask("POST", "v2/recording", document));
      return words;
    });
    look(false);
  }

  async function look(again) {
    if (stopped.signal.aborted) return;
    try {
      if (!document.hidden) draw(await ask("GET", "v2/recording", undefined, { signal: stopped.signal }));
    } catch (error) {
      if (error.name === "AbortError") return;
      outcome.say(error.message, "bad");
      if (error.status && error.status < 500) return;
    }
    if (again) setTimeout(() => look(true), PAUSE_MS);
  }

  look(true);
  return {
    title: "Recording",
    element: h("div", null, h("h1", null, "Recording"), h("p", { class: "note" }, "Requests and answers, kept in a file for tpy replay."), status, form, outcome.element, list),
    close: () => stopped.abort(),
  };
}
