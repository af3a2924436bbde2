// Try it: a form made from the metadata of a model, the answer, and the same call as code.

import { ApiError, check, credentials, events, modelPath, root, send } from "./api.js";
import { curl, plain, python } from "./code.js";
import { copyButton, h, setText } from "./dom.js";
import { time } from "./format.js";
import { acceptFiles } from "./media.js";
import { act, result } from "./parts.js";
import { binary, inferRequest, parseShape, parseValues, sample, size } from "./tensors.js";
import { showOutputs } from "./outputs.js";

const PREFILLED_MAX = 4096;

/** What the inputs of the model that was tried last have been filled with: its form is made anew for another key or version, and when it is loaded again. */
let filled = { model: "", inputs: new Map() };

export function tryIt(metadata, configuration, version, signal) {
  if (filled.model !== metadata.name) filled = { model: metadata.name, inputs: new Map() };
  const decoupled = configuration.model_transaction_policy?.decoupled === true;
  const labelled = new Set((configuration.output ?? []).filter((each) => each.label_filename).map((each) => each.name));
  const fields = metadata.inputs.map(inputField);
  const outcome = result();
  const found = h("div", { class: "outputs", "aria-live": "polite" });
  const classes = h("input", { type: "number", min: 0, max: 100, value: 0, "aria-label": "Classes" });
  const stream = h("input", { type: "checkbox", checked: decoupled, disabled: decoupled });
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const incomplete = h("p", { class: "note", hidden: true });
  const blocks = ["curl", "Python"].map((title) => {
    const code = h("pre");
    return h("details", { class: "code", open: true }, h("summary", null, title), code, copyButton(() => code.textContent));
  });
  const codes = h("div", { class: "codes" }, incomplete, blocks);
  const run = h("button", { type: "submit", class: "primary" }, "Run");
  const form = h(
    "form",
    { class: "try", onsubmit: submit, oninput: showCode },
    fields.map((field) => field.element),
    h(
      "p",
      { class: "actions" },
      run,
      stop,
      h("label", { class: "inline" }, stream, " stream of answers"),
      labelled.size ? h("label", { class: "inline" }, "highest classes ", classes) : "",
    ),
  );

  function requestedOutputs() {
    const count = Number(classes.value);
    if (!count) return undefined;
    return metadata.outputs.map(({ name }) => (labelled.has(name) ? { name, parameters: { classification: count } } : { name }));
  }

  function call() {
    const inputs = fields.map((field) => field.read());
    const path = `${modelPath(metadata.name, version)}/${stream.checked ? "generate_stream" : "infer"}`;
    return { inputs, path, outputs: requestedOutputs() };
  }

  function showCode() {
    try {
      const { inputs, path, outputs } = call();
      const url = new URL(path, root);
      const secured = Boolean(credentials().key);
      const about = { url: url.href, host: url.host + root.pathname.replace(/\/$/, ""), secure: url.protocol === "https:", model: metadata.name, version, inputs, outputs, stream: stream.checked, secured };
      setText(blocks[0].querySelector("pre"), curl(about));
      setText(blocks[1].querySelector("pre"), python(about));
      setText(incomplete, "");
    } catch (error) {
      setText(incomplete, `The call as code is shown when the inputs are complete: ${error.message}.`);
    }
    incomplete.hidden = !incomplete.textContent;
    for (const block of blocks) block.hidden = !incomplete.hidden;
  }

  async function submit(event) {
    event.preventDefault();
    await act(run, outcome, async () => {
      found.replaceChildren();
      const { inputs, path, outputs } = call();
      const began = performance.now();
      const answer = stream.checked ? await runStream(path, inputs) : await runOnce(path, inputs, outputs);
      return `${answer} in ${time(performance.now() - began)}.`;
    });
  }

  async function runOnce(path, inputs, outputs) {
    const request = inferRequest(inputs, outputs);
    const answer = await send("POST", path, { body: request.body, type: request.type, more: request.more, signal });
    await check(answer);
    const document = await answer.json();
    showOutputs(found, document);
    return `Version ${document.model_version} answered`;
  }

  async function runStream(path, inputs) {
    const stopped = new AbortController();
    stop.hidden = false;
    stop.onclick = () => stopped.abort();
    let count = 0;
    const list = h("ol", { class: "stream" });
    found.replaceChildren(list);
    try {
      const body = JSON.stringify(Object.fromEntries(inputs.map((each) => [each.name, plain(each)])));
      const answer = await send("POST", path, { body, signal: AbortSignal.any([signal, stopped.signal]) });
      await check(answer);
      for await (const { data } of events(answer)) {
        const document = JSON.parse(data);
        if (document.error) throw new ApiError(0, `after ${count} responses: ${document.error}`);
        const { model_name: _, model_version: __, ...rest } = document;
        list.append(h("li", null, h("code", null, JSON.stringify(rest))));
        count += 1;
        if (list.childElementCount > 500) list.firstElementChild.remove();
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      return `Stopped after ${count} responses`;
    } finally {
      stop.hidden = true;
    }
    return `${count} responses`;
  }

  showCode();
  return h("section", { class: "try-it" }, h("h2", null, "Try it"), form, outcome.element, found, codes);

  function inputField(tensor) {
    const shape = tensor.shape.map((each) => (each < 0 ? 1 : each));
    const flexible = tensor.shape.some((each) => each < 0);
    const problem = h("span", { class: "reason" });
    const shapeInput = h("input", { type: "text", value: shape.join(", "), spellcheck: "false", readonly: !flexible, "aria-label": `Shape of ${tensor.name}` });
    const values = h("textarea", { rows: size(shape) > 16 ? 4 : 2, spellcheck: "false", "aria-label": `Values of ${tensor.name}` });
    const preview = h("div", { class: "preview" });
    let file = null; // {shape, values} that came by a file
    const key = `${tensor.name} ${tensor.datatype} ${tensor.shape}`;
    const remember = () => filled.inputs.set(key, { shape: shapeInput.value, values: values.value, file });
    const fillWith = (kind) => {
      drop();
      values.value = sample(kind, tensor.datatype, parseShape(shapeInput.value, tensor.shape));
      remember();
      showCode();
    };
    const drop = () => {
      file = null;
      preview.replaceChildren();
      values.disabled = false;
      remember();
    };
    const take = (made) => {
      file = made;
      shapeInput.value = made.shape.join(", ");
      values.disabled = true;
      preview.replaceChildren(...made.preview, " ", h("button", { type: "button", onclick: () => (drop(), showCode()) }, "Remove"));
      setText(problem, "");
      remember();
    };
    values.value = size(shape) <= PREFILLED_MAX ? sample(tensor.datatype === "BYTES" ? "ones" : "zeros", tensor.datatype, shape) : "";
    if (!values.value) values.placeholder = `${size(shape)} values, or fill them with the buttons below`;
    const media = acceptFiles(tensor, {
      declared: configuration.parameters?.[`preprocessing.${tensor.name}`]?.string_value,
      taken(made) {
        take(made);
        showCode();
      },
      failed: (text) => setText(problem, text),
    });
    const fill = (kind) => h("button", { type: "button", onclick: () => fillWith(kind) }, kind);
    const element = h(
      "fieldset",
      { class: "input", oninput: remember },
      h("legend", null, tensor.name, h("span", { class: "type" }, ` ${tensor.datatype} [${tensor.shape.join(", ")}]`)),
      h("label", null, "Shape ", shapeInput),
      h("label", null, "Values ", values),
      preview,
      h("p", { class: "fills" }, "Fill: ", tensor.datatype === "BYTES" ? "" : [fill("zeros"), fill("ones")], fill("random"), media.element),
      problem,
    );
    media.listen(element);
    const former = filled.inputs.get(key);
    if (former) {
      shapeInput.value = former.shape;
      values.value = former.values;
      if (former.file) take(former.file);
    }
    return {
      element,
      read() {
        try {
          const dimensions = file?.shape ?? parseShape(shapeInput.value, tensor.shape);
          const given = file?.values ?? parseValues(values.value, tensor.datatype, dimensions);
          setText(problem, "");
          return { name: tensor.name, datatype: tensor.datatype, shape: dimensions, values: given, raw: file !== null && binary(given.slice(0, 1), tensor.datatype) !== null };
        } catch (error) {
          setText(problem, error.message);
          throw new Error(`input ${tensor.name}: ${error.message}`);
        }
      },
    };
  }
}
