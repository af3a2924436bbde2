// What the server's overview says, and the rates that follow from one look to the next.

import { pace } from "./chart.js";

const POINTS_MAX = 300;

/** Counters that only grow while a version is loaded. */
const COUNTERS = ["requests", "failures", "inferences", "executions", "latency_ns", "queue_ns", "compute_ns"];

export class Store {
  constructor() {
    this.server = null;
    this.models = new Map();
    this.total = { now: idle(0), history: [] };
    this.at = 0;
    this.newest = 0;
  }

  /** Take an event of the overview. */
  take(kind, document) {
    const elapsed = this.at && document.at_ms > this.at ? (document.at_ms - this.at) / 1000 : 0;
    this.at = document.at_ms;
    if (this.at < this.newest) this.forget(); // another server
    this.newest = this.at;
    this.server = document;
    if (elapsed) pace.gap = Math.max(2500, elapsed * 2500);
    const before = this.models;
    if (kind === "overview") this.models = new Map();
    for (const [name, version, namespace] of document.gone ?? []) this.models.delete(id(name, version, namespace));
    for (const model of this.models.values()) if (model.now.requests || model.now.failures) model.now = idle(this.at, model.row);
    const sums = Object.fromEntries(COUNTERS.map((name) => [name, 0]));
    for (const row of document.models) {
      const key = id(row.name, row.version, row.namespace ?? "");
      const former = before.get(key);
      const model = { key, row, now: idle(this.at, row), history: former?.history ?? [] };
      if (former && elapsed && "requests" in row) {
        const grown = growth(former.row, row);
        for (const name of COUNTERS) sums[name] += grown[name];
        model.now = rates(grown, elapsed, this.at, row);
      }
      push(model.history, model.now);
      this.models.set(key, model);
    }
    if (elapsed) {
      this.total.now = rates(sums, elapsed, this.at, {});
      push(this.total.history, this.total.now);
    }
  }

  /** The connection was lost: what comes next is not the growth since then. */
  lost() {
    this.at = 0;
  }

  forget() {
    this.models = new Map();
    this.total = { now: idle(0), history: [] };
  }

  versions(name) {
    return [...this.models.values()].filter((model) => model.row.name === name);
  }

  counts() {
    const found = { ready: 0, loading: 0, failed: 0, idle: 0 };
    for (const { row } of this.models.values()) found[group(row)] += 1;
    return found;
  }
}

/** The group of a row: ready, loading, failed or idle. */
export function group(row) {
  if (row.state === "READY") return "ready";
  if (row.state === "LOADING" || row.state === "UNLOADING") return "loading";
  return row.reason && row.reason !== "unloaded" ? "failed" : "idle";
}

function id(name, version, namespace) {
  return `${name}\n${version}\n${namespace}`;
}

function growth(before, after) {
  return Object.fromEntries(
    COUNTERS.map((name) => {
      const grown = after[name] - (before[name] ?? 0);
      return [name, grown < 0 ? after[name] : grown]; // loaded again: it counts from 0
    }),
  );
}

function rates(grown, elapsed, at, row) {
  const each = (name) => (grown.requests ? grown[name] / grown.requests / 1e6 : null);
  return {
    at,
    requests: grown.requests / elapsed,
    failures: grown.failures / elapsed,
    latency: each("latency_ns"),
    queue: each("queue_ns"),
    compute: each("compute_ns"),
    batch: grown.executions ? grown.inferences / grown.executions : null,
    memory: row.memory_bytes ?? null,
  };
}

function idle(at, row) {
  return { at, requests: 0, failures: 0, latency: null, queue: null, compute: null, batch: null, memory: row?.memory_bytes ?? null };
}

function push(history, point) {
  history.push(point);
  if (history.length > POINTS_MAX) history.shift();
}
