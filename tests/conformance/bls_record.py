"""Record the transcripts of calls from model to model: `python -m tests.conformance.bls_record HOST:PORT > transcripts/bls.json`.

The server serves the repository that `python -m tests.conformance.bls_record --build DIRECTORY` writes, in mode explicit with the
models that this prints.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from .bls_models import ASYNC, CALLER
from .bls_repository import MODELS, NOT_LOADED, build

_DEF = r"^    (?:async )?def (\w+)\(self\)"

ONLY_OURS = frozenset(("decoupled_cancel", "in_initialize", "load_files_without_config"))
"""Features that the recorded version lacks, answers in a way of its own, or crashes on."""

HANGS = frozenset(("adecoupled", "adecoupled_error", "adecoupled_without", "amodel_error"))
"""The recorded version hangs when a coroutine iterates over responses, and answers nothing after that."""

_LAST = ("load", "load_config", "load_files")
"""The recorded version may crash when one load after the other fails, or one fails after these. Start it again, and go on."""

SYNC_CASES = (*(name for name in re.findall(_DEF, CALLER, re.MULTILINE) if name not in {*ONLY_OURS, *_LAST}), *_LAST)
ASYNC_CASES = tuple(name for name in re.findall(_DEF, ASYNC[len(CALLER) :], re.MULTILINE) if name not in HANGS)
DECOUPLED_CASES = ("one", "thread@one", "thread@chain", "thread@unknown_model", "thread@decoupled_three", "thread@large")

CASES = (
    *(("caller", name) for name in SYNC_CASES),
    *(("acaller", name) for name in (*ASYNC_CASES, "one", "again")),
    *(("dcaller", name) for name in DECOUPLED_CASES),
)

LOADED = tuple(name for name in MODELS if name not in NOT_LOADED)


def ask(address: str, model: str, case: str) -> Any:
    """The model's account of its calls."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("POST", f"/v2/models/{model}/generate", json.dumps({"DO": case}))
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return _stable(json.loads(answer["SAID"])) if "SAID" in answer else answer


def _stable(said: Any) -> Any:
    """Without the folder that the repository lies in."""
    return json.loads(re.sub(r"At:\\n  [^\"]*?/(\w+/1/model.py)", r"At:\\n  \1", json.dumps(said)))


def record(address: str) -> dict[str, Any]:
    """The answer to every case, by model and name."""
    return {f"{model} {case}": ask(address, model, case) for model, case in CASES}


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build(Path(sys.argv[2]))
        print(" ".join(f"--load-model={name}" for name in LOADED))
    elif len(sys.argv) == 2:
        print(msgspec.json.format(msgspec.json.encode(record(sys.argv[1])), indent=1).decode())
    else:
        raise SystemExit(__doc__)
