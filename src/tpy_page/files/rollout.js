// The rollout of a new version: shares, how the requests of both versions ended, and buttons to decide.

import { ask } from "./api.js";
import { h, setText } from "./dom.js";
import { number, time } from "./format.js";
import { act, result } from "./parts.js";

function words({ state, percent, step, steps, reason, old, new: fresh }) {
  const why = reason ? `: ${reason}` : ".";
  if (state === "rolled back") return `Version ${fresh.version} is rolled back, version ${old.version} gets all requests${why}`;
  return `Version ${fresh.version} gets ${number(percent)} % of the requests without a version, in step ${step} of ${steps}${why}`;
}

function planWords({ plan, plan_from }) {
  const steps = plan.steps.map(({ percent, seconds }) => `${number(percent)} % for ${number(seconds)} s`).join(", ");
  const failures = plan.max_error_percent === null ? "failures do not count" : `at most ${number(plan.max_error_percent)} % of them may fail`;
  const source = plan_from === "call" ? "given with a call" : "of the model's parameter";
  return `The plan, ${source}: ${steps}; ${number(plan.min_requests)} requests or more in each step; ${failures}.`;
}

/** `update` shows a rollout, or hides the section for null. */
export function rolloutView(name, signal) {
  const outcome = result();
  const said = h("p");
  const planned = h("p", { class: "note" });
  const compared = h("p", { class: "note", hidden: true });
  const rows = h("tbody");
  const button = (label, action) => h("button", { type: "button", onclick: (event) => change(event.currentTarget, action) }, label);
  const [start, promote, back] = [button("Start again", "start"), button("Promote", "promote"), button("Roll back", "roll_back")];
  const element = h(
    "section",
    { hidden: true, "aria-label": "Rollout" },
    h("h2", null, "Rollout"),
    said,
    planned,
    h("table", null, h("thead", null, h("tr", null, ["Version", "Share", "Requests in this step", "Failed", "p99"].map((heading) => h("th", { scope: "col" }, heading)))), rows),
    compared,
    h("p", { class: "actions" }, promote, back, start),
    outcome.element,
  );

  async function change(pressed, action) {
    await act(pressed, outcome, async () => {
      const found = await ask("POST", `v2/repository/models/${encodeURIComponent(name)}/rollout`, { action }, { signal });
      if (found.state !== "promoted") update(found);
      return found.state === "promoted" ? `Version ${found.new.version} gets all requests.` : "Done.";
    });
  }

  function row(arm, share) {
    const cells = [String(arm.version), `${number(share)} %`, number(arm.ended), number(arm.failed), arm.ended ? time(arm.p99_ns / 1e6) : "–"];
    return h("tr", null, cells.map((text) => h("td", null, text)));
  }

  function update(found) {
    element.hidden = !found;
    if (!found) return;
    setText(said, words(found));
    setText(planned, planWords(found));
    rows.replaceChildren(row(found.old, 100 - found.percent), row(found.new, found.percent));
    compared.hidden = !found.compared;
    setText(compared, `${number(found.compared)} answers of both versions were compared, ${number(found.differed)} differ.`);
    back.hidden = found.state !== "running";
    start.hidden = found.state === "running";
  }

  return { element, update };
}
