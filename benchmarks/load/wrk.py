"""wrk: a small HTTP load generator in C. The request is a generated Lua script."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.http_exchange import HttpRequest
from benchmarks.load import Load, LoadFailed
from benchmarks.load.child import run_child
from benchmarks.servers.process import HOST

_MARK = "benchmark-result "

_DONE = f"""
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{_MARK}{{"answered":%d,"duration_us":%d,"p50_us":%.1f,"p99_us":%.1f,"refused":%d,"broken":%d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
"""


_VARIANTS = 61
"""A prime number, so that no connection of a usual number sends the same one again and again."""

_VARIED = f"""
local requests, at = {{}}, 0
function init(args)
  local body = wrk.body
  for number = 1, {_VARIANTS} do
    wrk.body = body .. string.rep(" ", number)
    wrk.headers["X-Request-Id"] = string.format("8a7d3c1e-5b6f-4a2d-9c%02d-0123456789ab", number)
    requests[number] = wrk.format()
  end
end
function request()
  at = at % {_VARIANTS} + 1
  return requests[at]
end
"""


def lua_script(request: HttpRequest, *, varied: bool = False) -> str:
    """A script that sends `request` on every connection, and prints one line of results. `varied`: no two requests that follow
    each other have the same head; their JSON has spaces behind it, and they have an id in a field."""
    lines = ['wrk.method = "POST"', f"wrk.path = {_quoted(request.path.encode())}", f"wrk.body = {_quoted(request.body)}"]
    lines += [f"wrk.headers[{_quoted(name.encode())}] = {_quoted(value.encode())}" for name, value in request.headers.items()]
    return "\n".join(lines) + "\n" + (_VARIED if varied else "") + _DONE


def _quoted(data: bytes) -> str:
    """A Lua string literal of any bytes."""
    plain = set(range(0x20, 0x7F)) - set(b'"\\')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03d}" for byte in data) + '"'


def parse_result(text: str, *, cpu_s: float) -> Load:
    """Read what the script printed. Raises LoadFailed when there is nothing, or any request failed."""
    line = next((line for line in text.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise LoadFailed(f"wrk printed no result:\n{text[-3000:]}")
    result = json.loads(line.removeprefix(_MARK))
    if result["refused"] or result["broken"] or not result["answered"]:
        raise LoadFailed(
            f"wrk: {result['answered']} answers, {result['refused']} of them with an error status, "
            f"{result['broken']} connections broken or timed out"
        )
    return Load(
        answered=result["answered"],
        seconds=result["duration_us"] / 1e6,
        latency_p50_ms=result["p50_us"] / 1e3,
        latency_p99_ms=result["p99_us"] / 1e3,
        cpu_s=cpu_s,
    )


def drive(program: Path, port: int, request: HttpRequest, *, connections: int, seconds: int, varied: bool = False) -> Load:
    """Keep `connections` busy with `request`, one thread; `varied` as for `lua_script`. Raises LoadFailed."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua_script(request, varied=varied))
        script.flush()
        command = [str(program), "--threads=1", f"--connections={connections}", f"--duration={seconds}s", "--timeout=30s"]
        text, cpu_s = run_child([*command, f"--script={script.name}", f"http://{HOST}:{port}"])
    return parse_result(text, cpu_s=cpu_s)
