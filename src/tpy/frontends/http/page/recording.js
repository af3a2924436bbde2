// The recording of requests: start, stop, how far it is.

import { ask } from "./api.js";
import { h } from "./dom.js";
import { bytes, number, time } from "./format.js";
import { act, result } from "./parts.js";

const PAUSE_MS = 2000;
const KEPT = { full: "all elements", hash: "a hash of the elements", none: "no elements" };

export function recordingView() {
  const stopped = new AbortController();
  const outcome = result();
  const status = h("p", { class: "totals", role: "status" });
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
    status.textContent = [`State: ${found.state}.`, file + lost, found.reason, where].filter(Boolean).join(" ");
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
    element: h("div", null, h("h1", null, "Recording"), h("p", { class: "note" }, "Requests and answers, kept in a file for tpy replay."), status, form, outcome.element),
    close: () => stopped.abort(),
  };
}
