// The server's HTTP API. The credentials stay in this tab's session storage and go out as headers.

export const root = new URL("../", document.baseURI);

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const STORED = "tpy.credentials";

export function credentials() {
  try {
    return JSON.parse(sessionStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

export function keep(values) {
  sessionStorage.setItem(STORED, JSON.stringify(values));
}

function headers(more) {
  const { key, name, value } = credentials();
  const all = new Headers(more);
  if (key) all.set("Authorization", `Bearer ${key}`);
  if (name) all.set(name, value ?? "");
  return all;
}

/** Path of a model, or of one of its versions. */
export function modelPath(name, version) {
  return `v2/models/${encodeURIComponent(name)}${version ? `/versions/${version}` : ""}`;
}

/** Ask; returns the answer whatever its status. Raises ApiError where there is none. */
export async function send(method, path, { body, accept, type, signal, more } = {}) {
  const sent = { ...more, ...(accept && { Accept: accept }), ...(body !== undefined && { "Content-Type": type ?? "application/json" }) };
  try {
    return await fetch(new URL(path, root), { method, body, headers: headers(sent), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
}

/** Ask; returns the JSON of the answer, null for none. Raises ApiError with the server's reason. */
export async function ask(method, path, document, options) {
  const answer = await send(method, path, { ...options, ...(document !== undefined && { body: JSON.stringify(document) }) });
  await check(answer);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/** Raise ApiError for an answer that is an error. */
export async function check(answer) {
  if (answer.ok) return;
  const text = await answer.text();
  let reason = text || answer.statusText;
  try {
    reason = JSON.parse(text).error ?? reason;
  } catch {
    // not JSON: a proxy's, say
  }
  if (answer.status === 401) dispatchEvent(new CustomEvent("unauthenticated"));
  throw new ApiError(answer.status, reason);
}

/** The server-sent events of an answer: {event, data}. */
export async function* events(answer) {
  const decoder = new TextDecoder();
  const reader = answer.body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const found = { event: "message", data: "" };
        for (const line of part.split("\n")) {
          if (line.startsWith("event: ")) found.event = line.slice(7);
          else if (line.startsWith("data: ")) found.data += line.slice(6);
        }
        if (found.data) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
