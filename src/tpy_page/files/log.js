// The log's newest lines and its settings.

import { ask } from "./api.js";
import { h, setFields } from "./dom.js";
import { act, result } from "./parts.js";

const LINES_MAX = 2000;
const PAUSE_MS = 1500;

export function logView() {
  const stopped = new AbortController();
  const outcome = result();
  const reading = result();
  const lines = h("pre", { class: "log", tabindex: 0, "aria-label": "The newest lines" });
  const follow = h("input", { type: "checkbox", checked: true });
  const filter = h("input", { id: "filter", type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter", oninput: sift });
  const settings = h("form", { class: "settings", onsubmit: change });
  let after = 0;

  function level(text) {
    const found = /^(?:([IWEF])\d{4} |\S+Z ([IWEF]) |\d\d:\d\d:\d\d (WARNING|ERROR)|\{.*?"level": "(\w+)")/.exec(text);
    const word = (found?.slice(1).find(Boolean) ?? "").toUpperCase();
    return { E: "error", F: "error", W: "warning" }[word[0]] ?? null;
  }

  function matches(line) {
    return line.textContent.toLowerCase().includes(filter.value.toLowerCase());
  }

  function sift() {
    for (const line of lines.children) line.hidden = !matches(line);
  }

  async function read() {
    if (stopped.signal.aborted) return;
    try {
      if (!document.hidden) {
        const { lines: found } = await ask("GET", `v2/logging/tail?after=${after}`, undefined, { signal: stopped.signal });
        for (const { number, text } of found) {
          after = number;
          const line = h("span", { class: level(text) }, `${text}\n`);
          line.hidden = !matches(line);
          lines.append(line);
          if (lines.childElementCount > LINES_MAX) lines.firstElementChild.remove();
        }
        if (found.length && follow.checked) lines.scrollTop = lines.scrollHeight;
        reading.say("");
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      reading.say(`The lines cannot be shown: ${error.message}`, "bad");
      if (error.status === 0) after = 0; // another server counts anew
      else if (error.status < 500 || error.status === 501) return;
    }
    setTimeout(read, PAUSE_MS);
  }

  function draw(found) {
    if (settings.childElementCount) return setFields(settings, found);
    const box = (name, label) => h("label", { class: "inline" }, h("input", { type: "checkbox", name, checked: found[name] }), ` ${label}`);
    settings.replaceChildren(
      box("log_info", "informational"),
      box("log_warning", "warnings"),
      box("log_error", "errors"),
      h("label", { class: "inline" }, "verbose ", h("input", { type: "number", name: "log_verbose_level", min: 0, max: 9, value: found.log_verbose_level })),
      h("label", { class: "inline" }, "format ", h("select", { name: "log_format" }, [...new Set([found.log_format, "default", "ISO8601", "json", "plain"])].map((name) => h("option", { selected: name === found.log_format }, name)))),
      h("button", { type: "submit" }, "Apply"),
      h("span", { class: "note" }, found.log_file ? `The log goes to ${found.log_file}.` : "The log goes to standard error."),
    );
  }

  async function change(event) {
    event.preventDefault();
    await act(event.submitter, outcome, async () => {
      const form = settings.elements;
      const values = { log_verbose_level: Number(form.log_verbose_level.value), log_format: form.log_format.value };
      for (const name of ["log_info", "log_warning", "log_error"]) values[name] = form[name].checked;
      draw(await ask("POST", "v2/logging", values));
      return "Applied.";
    });
  }

  read();
  ask("GET", "v2/logging", undefined, { signal: stopped.signal }).then(draw, (error) => error.name === "AbortError" || outcome.say(error.message, "bad"));
  return {
    title: "Log",
    element: h("div", null, h("h1", null, "Log"), settings, outcome.element, h("div", { class: "bar" }, filter, h("label", { class: "inline" }, follow, " follow")), reading.element, lines),
    close: () => stopped.abort(),
  };
}
