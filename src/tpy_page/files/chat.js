// A chat with a language model: what it writes is shown as it comes, with the time to the first token and tokens per second.

import { ApiError, check, events, modelPath, send } from "./api.js";
import { h, setText } from "./dom.js";
import { number, time } from "./format.js";
import { act, result } from "./parts.js";

/** Whether a model takes a prompt or a chat, and writes text piece by piece. */
export function takesChats(metadata, configuration) {
  const has = (tensors, name) => tensors.some((each) => each.name === name && each.datatype === "BYTES");
  const asked = has(metadata.inputs, "text_input") || has(metadata.inputs, "messages");
  return asked && has(metadata.outputs, "text_output") && configuration.model_transaction_policy?.decoupled === true;
}

export function chat(metadata, version, signal) {
  const inputs = new Set(metadata.inputs.map((each) => each.name));
  const converses = inputs.has("messages");
  const messages = [];
  const outcome = result();
  const transcript = h("div", { class: "transcript", "aria-live": "polite", "aria-label": "Conversation" });
  const said = h("textarea", { rows: 2, required: true, placeholder: converses ? "Message" : "Prompt", "aria-label": converses ? "Message" : "Prompt", onkeydown: sendByEnter });
  const tokens = h("input", { type: "number", min: 1, value: 256, "aria-label": "Tokens at most" });
  const temperature = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0.7, "aria-label": "Temperature" });
  const run = h("button", { type: "submit", class: "primary" }, "Send");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const anew = h("button", { type: "button", onclick: clear }, "Clear");
  const form = h(
    "form",
    { onsubmit: submit },
    said,
    h("p", { class: "actions" }, run, stop, anew, h("label", { class: "inline" }, "tokens at most ", tokens), h("label", { class: "inline" }, "temperature ", temperature)),
  );

  function clear() {
    messages.length = 0;
    transcript.replaceChildren();
    outcome.say("");
  }

  function sendByEnter(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!run.disabled) form.requestSubmit();
  }

  /** The request to generate_stream. */
  function request(text) {
    const settings = { max_tokens: Number(tokens.value), temperature: Number(temperature.value) };
    const wanted = { stream: true, exclude_input_in_output: true, return_num_output_tokens: true };
    const body = converses ? { messages: JSON.stringify(messages) } : { text_input: text };
    for (const [name, value] of Object.entries(wanted)) if (inputs.has(name)) body[name] = value;
    return Object.assign(body, inputs.has("sampling_parameters") ? { sampling_parameters: JSON.stringify(settings) } : settings);
  }

  function show(role, text) {
    const element = h("p", { class: role }, text);
    transcript.append(element);
    return element;
  }

  async function submit(event) {
    event.preventDefault();
    const text = said.value;
    await act(run, outcome, async () => {
      const stopped = new AbortController();
      stop.onclick = () => stopped.abort();
      stop.hidden = false;
      messages.push({ role: "user", content: text });
      show("user", text);
      said.value = "";
      const answer = show("assistant", "");
      try {
        return await write(request(text), answer, AbortSignal.any([signal, stopped.signal]));
      } catch (error) {
        if (!answer.textContent) answer.remove();
        if (error.name !== "AbortError") throw error;
        return "Stopped.";
      } finally {
        if (answer.textContent) messages.push({ role: "assistant", content: answer.textContent });
        else messages.pop();
        stop.hidden = true;
      }
    });
    said.focus();
  }

  /** Show what is written; the numbers about it. */
  async function write(body, element, both) {
    const began = performance.now();
    let first = 0;
    let last = 0;
    let count = 0;
    const answer = await send("POST", `${modelPath(metadata.name, version)}/generate_stream`, { body: JSON.stringify(body), signal: both });
    await check(answer);
    for await (const { data } of events(answer)) {
      const document = JSON.parse(data);
      if (document.error) throw new ApiError(0, document.error);
      const text = [document.text_output ?? ""].flat().join("");
      if (!text) continue;
      last = performance.now();
      first ||= last;
      count += Number([document.num_output_tokens ?? 1].flat()[0]);
      setText(element, element.textContent + text);
    }
    if (!first) return "It wrote nothing.";
    const rate = count > 1 && last > first ? `, ${number((count - 1) / ((last - first) / 1000))} tokens/s` : "";
    return `First token after ${time(first - began)}${rate}, ${count} ${count === 1 ? "token" : "tokens"} in ${time(last - began)}.`;
  }

  const note = converses ? "" : h("p", { class: "note" }, "The model gets each prompt as it is written here. Its chat template is applied by the port of OpenAI's API.");
  return h("section", { class: "try-it chat" }, h("h2", null, "Chat"), note, transcript, form, outcome.element);
}
