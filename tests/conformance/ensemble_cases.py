"""The requests of the ensemble transcripts, in the order in which they are sent; the server starts with nothing loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .cases import Case

_FOUR = [1, 2, 3, 4]


def _load(name: str, note: str = "") -> Case:
    return Case(name=f"load {name}{note and ', '}{note}", path=f"/v2/repository/models/{name}/load", body=b"{}")


def _unload(name: str, **parameters: Any) -> Case:
    body = json.dumps({"parameters": parameters}).encode() if parameters else b"{}"
    return Case(name=f"unload {name}{' and more' if parameters else ''}", path=f"/v2/repository/models/{name}/unload", body=body)


def _tensor(name: str, data: list[Any], datatype: str = "INT32", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape or [1, len(data)], "data": data}


def _infer(model: str, *inputs: dict[str, Any], note: str = "", **more: Any) -> Case:
    body = {"inputs": list(inputs or [_tensor("INPUT0", _FOUR)]), **more}
    return Case(name=f"infer {model}{note and ', '}{note}", path=f"/v2/models/{model}/infer", body=json.dumps(body).encode())


def _stream(model: str, upto: int) -> Case:
    body = json.dumps({"INPUT0": [upto, 0, 0, 0]}).encode()
    return Case(name=f"stream {model} {upto}", path=f"/v2/models/{model}/generate_stream", body=body)


def _get(what: str, model: str, note: str = "") -> Case:
    path = {"metadata": "", "config": "/config", "stats": "/stats"}[what]
    return Case(name=f"{what} {model}{note and ', '}{note}", method="GET", path=f"/v2/models/{model}{path}")


_GOOD = (
    *(
        "chain",
        "join",
        "fails",
        "nested",
        "lacks",
        "lacks_lenient",
        "lacks_all",
        "maybe",
        "unmapped_optional",
        "mixed",
        "mixed_rows",
    ),
    *("flat", "squares", "texts", "tells", "counts", "counts_last", "version_2"),
)

_BAD = (
    *("version_0", "version_3", "unknown", "too_wide", "other_type", "other_type_inside", "other_shape", "not_fed"),
    *("no_such_input", "no_such_output", "two_flows", "circle", "itself", "on_invalid", "on_raising", "no_step"),
)


def _cases() -> Iterator[Case]:
    yield from (_load(name) for name in (*_GOOD, *_BAD))
    for name in ("chain", "counts", "counts_last", "mixed"):
        yield _get("config", name)
        yield _get("metadata", name)
    yield _infer("chain", id="x")
    yield _infer("chain", note="three rows", inputs=[_tensor("INPUT0", _FOUR * 3, shape=[3, 4])])
    yield _infer("chain", note="wrong shape", inputs=[_tensor("INPUT0", [1, 2])])
    yield _infer("chain", note="too many rows", inputs=[_tensor("INPUT0", _FOUR * 5, shape=[5, 4])])
    yield _infer("chain", note="unknown output", outputs=[{"name": "A"}])
    yield _infer("join")
    yield _infer("join", note="one output", outputs=[{"name": "OUTPUT1"}])
    for what in (0, 1, 2, 3, 5, 6, 7):
        yield _infer("fails", note=str(what), id="x", inputs=[_tensor("INPUT0", [what, 0, 0, 0])])
    yield _infer("nested", note="2", inputs=[_tensor("INPUT0", [2, 0, 0, 0])])
    yield _infer("nested")
    for name in ("lacks", "lacks_lenient", "lacks_all", "unmapped_optional", "mixed", "squares", "version_2"):
        yield _infer(name, id="x")
    yield _infer("maybe")
    yield _infer("maybe", _tensor("INPUT0", _FOUR), _tensor("INPUT1", [5, 6, 7, 8]), note="both")
    yield _infer("mixed", note="two rows", id="x", inputs=[_tensor("INPUT0", _FOUR * 2, shape=[2, 4])])
    yield _infer("mixed_rows", note="two rows", inputs=[_tensor("INPUT0", _FOUR * 2, shape=[2, 4])])
    yield _infer("flat", inputs=[_tensor("INPUT0", _FOUR, shape=[4])])
    yield _infer("texts", inputs=[_tensor("INPUT0", ["a", "\u00e9", ""], "BYTES")])
    yield _infer("tells", id="me")
    yield _infer("tells", note="parameters", id="me", parameters={"k": 1, "s": "x", "b": True, "timeout": 9000000, "priority": 0})
    sequence = {"sequence_id": 5, "sequence_start": True, "sequence_end": False}
    yield _infer("tells", note="sequence", parameters=sequence)
    yield _infer("tells", note="text sequence", parameters={"sequence_id": "five", "sequence_end": True})
    for name in ("counts", "counts_last"):
        yield from (_stream(name, upto) for upto in (0, 1, 3))
    yield _infer("counts", note="which is decoupled")
    yield _get("stats", "chain")
    yield _get("stats", "fails")
    yield _get("stats", "again")
    yield _unload("again")
    yield _infer("chain", note="without a member")
    yield Case(name="infer chain version 1, without a member", path="/v2/models/chain/versions/1/infer", body=b'{"inputs":[]}')
    yield _get("stats", "chain", "without a member")
    yield _load("again", "after its unload")
    yield _infer("chain", note="with it again")
    yield _infer("nested", note="with it again")
    yield _unload("fails")
    yield _infer("nested", note="without the inner one")
    yield _load("nested", "which brings it")
    yield _infer("nested", note="loaded again")
    yield _unload("join", unload_dependents=True)
    yield _infer("two", _tensor("INPUT0", _FOUR), _tensor("INPUT1", _FOUR), note="which came with join")
    yield _infer("chain", note="whose members others need")


CASES: tuple[Case, ...] = tuple(_cases())
