// Pictures, sound and files as inputs: by drag and drop, or chosen.

import { h } from "./dom.js";
import { size } from "./tensors.js";

const SCALES = {
  "0 to 255": (v) => v,
  "0 to 1": (v) => v / 255,
  "-1 to 1": (v) => v / 127.5 - 1,
  ImageNet: (v, channel) => (v / 255 - [0.485, 0.456, 0.406][channel % 3]) / [0.229, 0.224, 0.225][channel % 3],
};

const FITS = {
  stretch: "stretched to the input",
  crop: "its middle, cropped",
  fit: "whole, with black borders",
};

const FLOATS = ["FP16", "FP32", "FP64"];

/** Where height, width and channels are in a shape of a picture: null when it cannot be one. */
export function layout(shape) {
  const at = shape.length - 3;
  if (at < 0 || shape.slice(0, at).some((each) => each !== 1 && each !== -1)) return null;
  const channels = (each) => each === 1 || each === 3 || each === 4;
  if (channels(shape[at])) return { order: "CHW", channels: shape[at], height: shape[at + 1], width: shape[at + 2] };
  if (channels(shape[at + 2])) return { order: "HWC", channels: shape[at + 2], height: shape[at], width: shape[at + 1] };
  return null;
}

/** What a model declares of an input, "range=ImageNet resize=crop order=BGR" or "rate=8000": by name. Raises Error. */
export function declaredOf(text) {
  const found = Object.fromEntries((text ?? "").split(/\s+(?=\w+=)/).filter(Boolean).map((each) => each.split("=", 2)));
  const known = { range: Object.keys(SCALES), resize: Object.keys(FITS), order: ["RGB", "BGR"], rate: null };
  for (const [name, value] of Object.entries(found)) {
    if (!(name in known)) throw new Error(`the model declares '${name}'; expected one of ${Object.keys(known).join(", ")}`);
    const values = known[name];
    if (values && !values.includes(value)) throw new Error(`the model declares ${name}=${value}; expected one of ${values.join(", ")}`);
    if (!values && !(Number(value) > 0)) throw new Error(`the model declares rate=${value}; expected samples a second`);
  }
  return found;
}

/** What files an input takes, with what is needed to choose them. `taken` gets {shape, values, preview}; `declared` is what the
 *  model says about its pre-processing. */
export function acceptFiles(tensor, { declared, taken, failed }) {
  let given = {};
  try {
    given = declaredOf(declared);
  } catch (error) {
    failed(error.message);
  }
  const place = layout(tensor.shape);
  const floats = FLOATS.includes(tensor.datatype);
  const pixels = place && (floats || /INT/.test(tensor.datatype));
  const sound = floats && !place && tensor.shape.length <= 2 && (tensor.shape.at(-1) === -1 || tensor.shape.at(-1) >= 256);
  const whole = tensor.datatype === "BYTES" || tensor.datatype === "UINT8";
  if (!pixels && !sound && !whole) return { element: "", listen: () => {} };
  const scale = h("select", { "aria-label": "Range of pixels" }, Object.keys(SCALES).map((name) => h("option", { selected: name === (given.range ?? (floats ? "0 to 1" : "0 to 255")) }, name)));
  const choice = (label, values, chosen) => h("select", { "aria-label": label }, values.map((name) => h("option", { selected: name === chosen }, name)));
  const resize = choice("Resizing", Object.keys(FITS), given.resize ?? "stretch");
  const colours = choice("Order of colours", ["RGB", "BGR"], given.order ?? "RGB");
  const rate = h("input", { type: "number", value: given.rate ?? 16000, min: 1000, max: 192000, "aria-label": "Samples a second" });
  const chooser = h("input", { type: "file", "aria-label": `File for ${tensor.name}`, accept: pixels ? "image/*" : sound ? "audio/*" : null, onchange: () => chooser.files[0] && take(chooser.files[0]) });

  let newest = null;

  /** Read a file; of several, the one that came last is taken, whichever is read sooner. */
  async function take(file) {
    newest = file;
    try {
      const made = await read(file);
      if (file === newest) taken(made);
    } catch (error) {
      if (file === newest) failed(`${file.name}: ${error.message || "it cannot be read"}`);
    }
  }

  function read(file) {
    if (pixels) return picture(file, tensor, place, { scale: SCALES[scale.value], resize: resize.value, reversed: colours.value === "BGR" });
    return sound ? samples(file, tensor, Number(rate.value)) : content(file, tensor);
  }

  return {
    element: h("span", { class: "files" }, pixels ? "or drop a picture " : sound ? "or drop sound " : "or drop a file ", chooser, pixels ? [scale, resize, colours] : sound ? [rate, " samples/s"] : "", declared && (pixels || sound) ? h("span", { class: "note" }, "as the model declares") : ""),
    listen(element) {
      element.addEventListener("dragover", (event) => {
        event.preventDefault();
        element.classList.add("over");
      });
      element.addEventListener("dragleave", () => element.classList.remove("over"));
      element.addEventListener("drop", (event) => {
        event.preventDefault();
        element.classList.remove("over");
        if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
      });
    },
  };
}

/** Where the picture goes on a canvas of this size: x, y, width, height. */
function placeOf(resize, bitmap, width, height) {
  if (resize === "stretch") return [0, 0, width, height];
  const ratios = [width / bitmap.width, height / bitmap.height];
  const ratio = resize === "crop" ? Math.max(...ratios) : Math.min(...ratios);
  const [w, h_] = [bitmap.width * ratio, bitmap.height * ratio];
  return [(width - w) / 2, (height - h_) / 2, w, h_];
}

async function picture(file, tensor, { order, channels, height, width }, { scale, resize, reversed }) {
  const bitmap = await createImageBitmap(file);
  const [w, h_] = [width > 0 ? width : bitmap.width, height > 0 ? height : bitmap.height];
  const canvas = h("canvas", { width: w, height: h_ });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillRect(0, 0, w, h_);
  context.drawImage(bitmap, ...placeOf(resize, bitmap, w, h_));
  const rgba = context.getImageData(0, 0, w, h_).data;
  const values = new (tensor.datatype === "UINT8" ? Uint8Array : Float32Array)(w * h_ * channels);
  for (let pixel = 0; pixel < w * h_; pixel++) {
    for (let channel = 0; channel < channels; channel++) {
      const at = 4 * pixel;
      const grey = 0.299 * rgba[at] + 0.587 * rgba[at + 1] + 0.114 * rgba[at + 2];
      const from = reversed && channel < 3 ? 2 - channel : channel;
      const value = channels === 1 ? grey : rgba[at + from];
      values[order === "CHW" ? channel * w * h_ + pixel : pixel * channels + channel] = scale(value, from);
    }
  }
  const shape = [...tensor.shape.slice(0, -3).map(() => 1), ...(order === "CHW" ? [channels, h_, w] : [h_, w, channels])];
  return { shape, values, preview: [canvas, ` ${file.name}, ${bitmap.width} × ${bitmap.height}, drawn to ${w} × ${h_}${resize === "stretch" ? "" : `, ${FITS[resize]}`}`] };
}

async function samples(file, tensor, rate) {
  const offline = new OfflineAudioContext(1, 1, rate);
  const decoded = await offline.decodeAudioData(await file.arrayBuffer());
  const values = new Float32Array(decoded.length);
  for (let channel = 0; channel < decoded.numberOfChannels; channel++) {
    decoded.getChannelData(channel).forEach((value, at) => (values[at] += value / decoded.numberOfChannels));
  }
  const length = tensor.shape.at(-1);
  const cut = length > 0 ? fit(values, length) : values;
  const shape = [...tensor.shape.slice(0, -1).map(() => 1), cut.length];
  return { shape, values: cut, preview: [`${file.name}: ${decoded.duration.toFixed(2)} s, ${cut.length} samples at ${rate} a second`] };
}

function fit(values, length) {
  const found = new Float32Array(length);
  found.set(values.subarray(0, length));
  return found;
}

async function content(file, tensor) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const preview = [`${file.name}, ${bytes.length.toLocaleString("en")} bytes`];
  if (tensor.datatype === "BYTES") return { shape: tensor.shape.map((each) => (each < 0 ? 1 : each)), values: [bytes], preview };
  const shape = tensor.shape.map((each) => (each < 0 ? 1 : each));
  const open = tensor.shape.lastIndexOf(-1);
  if (open >= 0) shape[open] = bytes.length / size(shape.filter((_, at) => at !== open));
  if (size(shape) !== bytes.length) throw new Error(`expected ${size(shape)} bytes, got ${bytes.length}`);
  return { shape, values: bytes, preview };
}
