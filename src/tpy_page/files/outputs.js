// The answer of a model: tables, pictures, texts.

import { h } from "./dom.js";
import { rowsOf, size } from "./tensors.js";
import { layout } from "./media.js";

const ROWS_MAX = 100;
const COLUMNS_MAX = 50;
const TEXT_MAX = 20_000;

export function showOutputs(element, document) {
  element.replaceChildren(...(document.outputs ?? []).map(output), raw(document));
}

function output({ name, datatype, shape, data }) {
  const values = data.flat(Infinity);
  const place = shape.length >= 3 && datatype !== "BYTES" ? layout(shape) : null;
  const drawn = place && place.width > 3 && place.height > 3 ? picture(values, place) : null;
  return h(
    "figure",
    { class: "output" },
    h("figcaption", null, h("b", null, name), ` ${datatype} [${shape.join(", ")}]`),
    drawn,
    drawn ? h("details", null, h("summary", null, "Values"), table(values, shape)) : datatype === "BYTES" && values.length === 1 ? h("pre", { class: "text" }, String(values[0]).slice(0, TEXT_MAX)) : table(values, shape),
  );
}

function table(values, shape) {
  const rows = rowsOf(values, shape);
  const cut = [];
  if (rows.length > ROWS_MAX) cut.push(`${rows.length - ROWS_MAX} more rows`);
  if ((rows[0]?.length ?? 0) > COLUMNS_MAX) cut.push(`${rows[0].length - COLUMNS_MAX} more columns`);
  const highest = rows.length <= ROWS_MAX && rows[0]?.length > 2 && rows.every((row) => row.every((each) => typeof each === "number"));
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "values" },
      h(
        "tbody",
        null,
        rows.slice(0, ROWS_MAX).map((row, at) => {
          const top = highest ? row.indexOf(Math.max(...row)) : -1;
          return h("tr", null, h("th", { scope: "row" }, String(at)), row.slice(0, COLUMNS_MAX).map((each, column) => h("td", { class: column === top ? "highest" : null }, written(each))));
        }),
      ),
    ),
    cut.length ? h("p", { class: "note" }, cut.join(", ")) : "",
  );
}

function written(value) {
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(6))) : String(value).slice(0, TEXT_MAX);
}

function picture(values, { order, channels, height, width }) {
  if (size([channels, height, width]) > values.length) return null;
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const span = low >= 0 && high > 1 && high <= 255 ? [0, 255] : low >= 0 && high <= 1 ? [0, 1] : [low, high];
  const canvas = h("canvas", { width, height });
  const image = new ImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      const from = Math.min(channel, channels - 1);
      const value = values[order === "CHW" ? from * width * height + pixel : pixel * channels + from];
      image.data[4 * pixel + channel] = ((value - span[0]) / (span[1] - span[0] || 1)) * 255;
    }
    image.data[4 * pixel + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function raw(document) {
  const text = JSON.stringify(document, null, 1);
  return h("details", null, h("summary", null, "JSON"), h("pre", null, text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}\n...` : text));
}
