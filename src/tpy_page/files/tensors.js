// Tensors of requests and answers: texts to values, values to bytes, samples.

const ARRAYS = {
  BOOL: Uint8Array, UINT8: Uint8Array, UINT16: Uint16Array, UINT32: Uint32Array, UINT64: BigUint64Array,
  INT8: Int8Array, INT16: Int16Array, INT32: Int32Array, INT64: BigInt64Array, FP32: Float32Array, FP64: Float64Array,
};

export const NUMPY = {
  BOOL: "bool_", UINT8: "uint8", UINT16: "uint16", UINT32: "uint32", UINT64: "uint64", INT8: "int8", INT16: "int16",
  INT32: "int32", INT64: "int64", FP16: "float16", FP32: "float32", FP64: "float64", BYTES: "object_",
};

/** The number of elements of a shape. */
export function size(shape) {
  return shape.reduce((product, each) => product * each, 1);
}

/** A shape from "1, 4". Raises Error for what is none, or does not fit `declared`. */
export function parseShape(text, declared) {
  const shape = text.split(/[\s,x×]+/).filter(Boolean).map(Number);
  if (shape.some((each) => !Number.isInteger(each) || each < 0)) throw new Error(`expected a shape as 1, 4, got "${text}"`);
  if (shape.length !== declared.length) throw new Error(`expected ${declared.length} dimensions, got ${shape.length}`);
  const wrong = shape.findIndex((each, at) => declared[at] >= 0 && each !== declared[at]);
  if (wrong >= 0) throw new Error(`dimension ${wrong + 1} is ${declared[wrong]}, got ${shape[wrong]}`);
  return shape;
}

/** The values of a text: JSON, or words between blanks and commas; of strings also one in each line. Raises Error. */
export function parseValues(text, datatype, shape) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    const trimmed = text.trim();
    if (/^[[{"]/.test(trimmed) && datatype !== "BYTES") throw new Error("this is not JSON");
    if (datatype === "BYTES") found = size(shape) === 1 ? [text] : text.split("\n");
    else found = trimmed.split(/[\s,;]+/).filter(Boolean);
  }
  const flat = (Array.isArray(found) ? found.flat(Infinity) : [found]).map((each) => value(each, datatype));
  if (flat.length !== size(shape)) throw new Error(`expected ${size(shape)} values for shape [${shape.join(", ")}], got ${flat.length}`);
  return flat;
}

function value(each, datatype) {
  if (datatype === "BYTES") return typeof each === "string" ? each : JSON.stringify(each);
  if (datatype === "BOOL") {
    if (each === true || each === "true" || each === 1 || each === "1") return true;
    if (each === false || each === "false" || each === 0 || each === "0") return false;
    throw new Error(`expected true or false, got ${each}`);
  }
  const number = Number(each);
  if (each === "" || typeof each === "object" || Number.isNaN(number)) throw new Error(`expected a number, got ${JSON.stringify(each)}`);
  if (/INT/.test(datatype) && !Number.isInteger(number)) throw new Error(`expected a whole number, got ${each}`);
  return number;
}

/** Values to begin with, as text. */
export function sample(kind, datatype, shape) {
  const count = size(shape);
  const make = {
    zeros: () => 0,
    ones: () => 1,
    random: () => (/INT/.test(datatype) ? Math.floor(Math.random() * 10) : Math.round(Math.random() * 1000) / 1000),
  }[kind];
  if (datatype === "BYTES") return JSON.stringify(Array.from({ length: count }, () => "text"));
  if (datatype === "BOOL") return Array.from({ length: count }, () => make() > 0).join(", ");
  return Array.from({ length: count }, make).join(", ");
}

/** Rows of values as the last dimension has them. */
export function rowsOf(values, shape) {
  const width = shape.length ? shape[shape.length - 1] : 1;
  const rows = [];
  for (let at = 0; at < values.length; at += Math.max(1, width)) rows.push(values.slice(at, at + Math.max(1, width)));
  return rows;
}

/** The bytes of a tensor in Triton's binary form: of numbers in an array, or of strings that are Uint8Array. Null for others. */
export function binary(values, datatype) {
  if (datatype === "BYTES") {
    const pieces = values.map((each) => (each instanceof Uint8Array ? each : new TextEncoder().encode(each)));
    const bytes = new Uint8Array(pieces.reduce((sum, each) => sum + 4 + each.length, 0));
    const view = new DataView(bytes.buffer);
    let at = 0;
    for (const piece of pieces) {
      view.setUint32(at, piece.length, true);
      bytes.set(piece, at + 4);
      at += 4 + piece.length;
    }
    return bytes;
  }
  const kind = ARRAYS[datatype];
  if (!kind) return null;
  const array = values instanceof kind ? values : kind.from(values, kind === BigInt64Array || kind === BigUint64Array ? (each) => BigInt(each) : Number);
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** Body and headers of an inference request. `inputs`: {name, datatype, shape, values}; with `raw` values go as bytes. */
export function inferRequest(inputs, outputs) {
  const raw = inputs.some((each) => each.raw);
  const parts = [];
  const document = {
    inputs: inputs.map(({ name, datatype, shape, values, raw: asBytes }) => {
      if (!asBytes) return { name, datatype, shape, data: Array.from(values) };
      const bytes = binary(values, datatype);
      parts.push(bytes);
      return { name, datatype, shape, parameters: { binary_data_size: bytes.length } };
    }),
    ...(outputs && { outputs }),
  };
  const head = new TextEncoder().encode(JSON.stringify(document));
  if (!raw) return { document, body: head, type: "application/json", more: {} };
  return { document, body: new Blob([head, ...parts]), type: "application/octet-stream", more: { "Inference-Header-Content-Length": String(head.length) } };
}
