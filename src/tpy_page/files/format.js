// Numbers for people.

/** A rate or a mean: three digits. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1e6) return `${trim((value / 1e6).toPrecision(3))} M`;
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return trim(value.toPrecision(3));
}

/** A time in milliseconds. */
export function time(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms === 0) return "0";
  if (ms < 1) return `${trim((ms * 1000).toPrecision(3))} µs`;
  if (ms < 1000) return `${trim(ms.toPrecision(3))} ms`;
  return `${trim((ms / 1000).toPrecision(3))} s`;
}

/** A size in bytes. */
export function bytes(value) {
  if (value === 0) return "0";
  if (!value) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") return `${trim(value.toPrecision(3))} ${unit}`;
    value /= 1024;
  }
}

/** A share of 1. */
export function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

/** How long ago a moment in milliseconds was. */
export function ago(ms) {
  if (!ms) return "never";
  const s = Math.max(0, Math.round((Date.now() - ms) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.round(s / 60)} min ago`;
  return s < 86400 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86400)} d ago`;
}

function trim(text) {
  if (text.includes("e")) return String(Number(text));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
