// The page: which view is shown, the connection to the server, and the key.

import { ApiError, check, credentials, events, keep, send } from "./api.js";
import { h, setText } from "./dom.js";
import { logView } from "./log.js";
import { modelView } from "./model.js";
import { overviewView } from "./overview.js";
import { recordingView } from "./recording.js";
import { Store } from "./store.js";
import { tracesView } from "./traces.js";

const store = new Store();
const main = document.getElementById("main");
const connection = document.getElementById("connection");
const dialog = document.getElementById("credentials");
let view = null;
let reading = null;

/** Say something above the view, as long as it is true. */
function notice(text) {
  const element = document.getElementById("notice");
  setText(element, text);
  element.hidden = !text;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
}

function show() {
  view?.close?.();
  const [, kind, name, version] = location.hash.slice(1).split("/").map(decoded);
  const parts = { store };
  if (kind === "models" && name) view = modelView(parts, name, version);
  else if (kind === "log") view = logView();
  else if (kind === "traces") view = tracesView();
  else if (kind === "recording") view = recordingView();
  else view = overviewView(parts);
  main.replaceChildren(view.element);
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === `#/${kind === "models" ? "" : (kind ?? "")}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} – tpy`;
  view.update?.();
  scrollTo(0, 0);
}

function say(state, text) {
  connection.className = state;
  setText(connection, text);
}

/** Read the overview until the tab is hidden; again when the server or the connection breaks off. */
async function read() {
  const stopped = new AbortController();
  reading?.abort();
  reading = stopped;
  for (let wait = 500; !stopped.signal.aborted; wait = Math.min(wait * 2, 5000)) {
    try {
      const answer = await send("GET", "v2/overview", { accept: "text/event-stream", signal: stopped.signal });
      await check(answer);
      for await (const { event, data } of events(answer)) {
        store.take(event, JSON.parse(data));
        wait = 250;
        const { server } = store;
        setText(document.getElementById("server"), server.name);
        document.getElementById("server").title = `tpy ${server.version}`;
        say(server.ready ? "good" : "bad", server.ready ? "ready" : "not ready");
        notice("");
        view?.update?.();
      }
    } catch (error) {
      if (stopped.signal.aborted) return;
      say("bad", "not connected");
      if (!(error instanceof ApiError)) notice("The connection was lost; trying again.");
      else if (error.status === 0) notice("The server does not answer; trying again.");
      else {
        notice(`The models cannot be shown: ${error.message}`);
        if (error.status < 500) return; // until there is another key
      }
    }
    if (stopped.signal.aborted) return;
    store.lost();
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function askForKey() {
  const { key, name, value } = credentials();
  document.getElementById("credential").value = key ?? "";
  document.getElementById("header-name").value = name ?? "";
  document.getElementById("header-value").value = value ?? "";
  if (!dialog.open) dialog.showModal();
}

const form = dialog.querySelector("form");
form.addEventListener("submit", ({ submitter }) => {
  if (submitter?.value !== "save") return;
  const value = (id) => document.getElementById(id).value.trim();
  keep({ key: value("credential"), name: value("header-name"), value: value("header-value") });
  notice("");
  read();
  show();
});
dialog.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.tagName === "INPUT") {
    event.preventDefault();
    form.requestSubmit(form.querySelector("button[value=save]"));
  }
});
document.getElementById("key").addEventListener("click", askForKey);
addEventListener("unauthenticated", askForKey);
addEventListener("hashchange", () => {
  if (location.hash !== "#main") show();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    reading?.abort();
    store.lost();
  } else read();
});
document.addEventListener("keydown", (event) => {
  const filter = document.getElementById("filter");
  if (event.key === "/" && filter && !event.target.closest("input, textarea, select, dialog")) {
    event.preventDefault();
    filter.focus();
  }
});
main.append(h("p", null, "Connecting…"));
show();
read();
