"""Types are resolved at import. msgspec resolves a class when it is first decoded, and a process in which two threads do so at
once ends with a segmentation fault; so what may run in a thread decodes by a Decoder that its module has made."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "control", "data")
_ONE = "a command, or the start of a process: one thread"
_IMPORTED = "its types are resolved by Decoders at import"
IN_ONE_THREAD = {
    "data/tpy_native/process/metrics.py": "builtin types only",
    "data/tpy_native/process/serving.py": "builtin types only",
    "data/tpy_native/strategies/process.py": _ONE,
    "src/tpy_tools/analyze/core/checkpoint.py": _ONE,
    "src/tpy_tools/commands/explain/ask.py": _ONE,
    "src/tpy_tools/commands/infer_request.py": _ONE,
    "src/tpy_tools/commands/init/sources.py": _ONE,
    "src/tpy_tools/commands/record.py": _ONE,
    "src/tpy_tools/commands/rollout.py": _ONE,
    "src/tpy/flag.py": _ONE,
    "src/tpy/frontend_process.py": _ONE,
    "src/tpy/frontends/access/config.py": "at the start, and by the one task that reloads it",
    "src/tpy/frontends/access/__init__.py": _ONE,
    "src/tpy/frontends/http/recordings.py": "the loop's thread only",
    "src/tpy_platforms/openai/requests.py": _IMPORTED,
    "src/tpy/frontends/tls_flags.py": _ONE,
    "src/tpy_tools/load/server.py": _ONE,
    "src/tpy_tools/load/worker.py": _ONE,
    "src/tpy_tools/load/workers.py": _ONE,
    "src/tpy/ray/arguments.py": _ONE,
    "src/tpy/tenants.py": _IMPORTED,
    "src/tpy/remote/core/messages.py": "messages at import, the values of answers on the loop's thread",
}
"""Files that have msgspec resolve a type when they are called, and why no two threads can meet there."""


def resolves_late(source: str) -> list[int]:
    """The lines inside functions where msgspec is given a type: `decode(..., type=X)`, `convert(..., X)`, `Decoder(X)`."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found += [node.lineno for node in ast.walk(function) if isinstance(node, ast.Call) and _is_late(node)]
    return sorted(set(found))


def _is_late(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if not name.startswith("msgspec."):
        return False
    match name.rsplit(".", 1)[1]:
        case "decode":
            return any(keyword.arg == "type" for keyword in call.keywords)
        case "convert" | "Decoder":
            return True
        case _:
            return False


def test_the_lint_sees_it() -> None:
    assert resolves_late("def f(x):\n    return msgspec.json.decode(x, type=X)") == [2]
    assert resolves_late("def f(x):\n    return msgspec.convert(x, X)") == [2]
    assert resolves_late("async def f(x):\n    return msgspec.msgpack.Decoder(X).decode(x)") == [2]
    assert not resolves_late("decode = msgspec.json.Decoder(X).decode\ndef f(x):\n    return decode(x), msgspec.json.decode(x)")


def test_what_runs_in_threads_resolves_its_types_at_import() -> None:
    late = set()
    for file in (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))):
        source = file.read_text(encoding="utf-8")
        if "msgspec" in source and resolves_late(source):
            late.add(str(file.relative_to(ROOT)))
    assert late <= IN_ONE_THREAD.keys(), "make a Decoder in the module"
    assert late >= IN_ONE_THREAD.keys(), "no longer needed in the list"


_MANY = """
import sys, threading
from tpy_data.backends.python.worker.hosting.order import HostingAnswer, decode_answer, pack, unpack
from tpy.backend import BackendCapabilities
sys.setswitchinterval(1e-6)
text = pack(HostingAnswer(capabilities=BackendCapabilities(name="x", default_model_filename="")))
start = threading.Barrier(8)
def ask():
    start.wait()
    unpack(text, decode_answer)
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_many_isolated_backends_are_asked_at_once() -> None:
    assert subprocess.run([sys.executable, "-c", _MANY], cwd=ROOT, check=False).returncode == 0
