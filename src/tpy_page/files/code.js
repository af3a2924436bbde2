// The same call for a terminal and for a program. Keys are named, never shown.

import { NUMPY, size } from "./tensors.js";

const SHOWN_MAX = 64;

/** The call with curl. */
export function curl({ url, inputs, outputs, stream, secured }) {
  const lines = [`curl -s${stream ? "N" : ""} ${quote(url)}`];
  if (secured) lines.push(`-H "Authorization: Bearer $TPY_KEY"`);
  const long = inputs.some((each) => each.raw || size(each.shape) > SHOWN_MAX);
  const document = stream
    ? Object.fromEntries(inputs.map((each) => [each.name, plain(each)]))
    : { inputs: inputs.map((each) => ({ name: each.name, datatype: each.datatype, shape: each.shape, data: long && (each.raw || size(each.shape) > SHOWN_MAX) ? ["..."] : Array.from(each.values) })), ...(outputs && { outputs }) };
  lines.push(`-d ${quote(JSON.stringify(document))}`);
  const note = long ? "# put the values of the long inputs in place of ...\n" : "";
  return note + lines.join(" \\\n  ");
}

/** The value of an input in a request to generate: one element alone, or a list. */
export function plain({ values }) {
  return values.length === 1 ? values[0] : Array.from(values);
}

/** The call in Python, with Triton's client. */
export function python({ host, secure, model, version, inputs, outputs, stream, secured, url }) {
  if (stream) return pythonStream({ url, inputs, secured });
  const lines = [
    "import numpy as np",
    "import tritonclient.http as triton  # pip install tritonclient[http]",
    ...(secured ? ["", "import os"] : []),
    "",
    `client = triton.InferenceServerClient(${text(host)}${secure ? ", ssl=True" : ""})`,
  ];
  inputs.forEach((each, at) => {
    lines.push(
      `x${at} = triton.InferInput(${text(each.name)}, ${JSON.stringify(each.shape)}, ${text(each.datatype)})`,
      `x${at}.set_data_from_numpy(${array(each)})`,
    );
  });
  const given = inputs.map((_, at) => `x${at}`).join(", ");
  const asked = (outputs ?? []).filter((each) => each.parameters?.classification).map((each) => `triton.InferRequestedOutput(${text(each.name)}, class_count=${each.parameters.classification})`);
  const more = [
    version ? `model_version=${text(version)}` : "",
    asked.length ? `outputs=[${asked.join(", ")}]` : "",
    secured ? `headers={"Authorization": f"Bearer {os.environ['TPY_KEY']}"}` : "",
  ].filter(Boolean);
  lines.push(`answer = client.infer(${[text(model), `[${given}]`, ...more].join(", ")})`, "for output in answer.get_response()[\"outputs\"]:", "    print(output[\"name\"], answer.as_numpy(output[\"name\"]))");
  return lines.join("\n");
}

function pythonStream({ url, inputs, secured }) {
  const body = `{${inputs.map((each) => `${text(each.name)}: ${literal(plain(each))}`).join(", ")}}`;
  return [
    "import json",
    ...(secured ? ["import os"] : []),
    "import urllib.request",
    "",
    `request = urllib.request.Request(${text(url)}, json.dumps(${body}).encode())`,
    ...(secured ? [`request.add_header("Authorization", f"Bearer {os.environ['TPY_KEY']}")`] : []),
    "with urllib.request.urlopen(request) as answer:",
    "    for line in answer:",
    '        if line.startswith(b"data: "):',
    "            print(json.loads(line[6:]))",
  ].join("\n");
}

function array({ datatype, shape, values, raw }) {
  const type = `np.${NUMPY[datatype] ?? "float32"}`;
  if (raw || size(shape) > SHOWN_MAX) {
    return datatype === "BYTES" ? `np.array([open("FILE", "rb").read()], ${type}).reshape(${JSON.stringify(shape)})` : `np.zeros(${JSON.stringify(shape)}, ${type})`;
  }
  return `np.array(${literal(Array.from(values))}, ${type}).reshape(${JSON.stringify(shape)})`;
}

function literal(value) {
  return JSON.stringify(value, (_, each) => (each === true ? "\u0001T" : each === false ? "\u0001F" : each)).replaceAll('"\\u0001T"', "True").replaceAll('"\\u0001F"', "False");
}

function text(value) {
  return JSON.stringify(value);
}

function quote(value) {
  return `'${value.replaceAll("'", "'\\''")}'`;
}
