"""The requests of the generate transcripts, in the order in which they are sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .cases import Case


def _case(name: str, model: str, body: object, *, stream: bool = False, **headers: str) -> Case:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    path = f"/v2/models/{model}/generate{'_stream' if stream else ''}"
    return Case(name=name, path=path, body=raw, headers={key.replace("_", "-"): value for key, value in headers.items()})


_ACTS = (
    "final",
    "one",
    "one.",
    "one two three",
    "one two three.",
    "a,b",
    "none",
    "none one",
    "!",
    "!bad",
    "!end",
    "one !",
    "one ! two",
    "one !end",
    "raise",
    "raise after one",
    "later",
    "misuse",
    "said",
    "list",
)


def _decoupled() -> Iterator[Case]:
    for act in _ACTS:
        for stream in (False, True):
            if act == "said" and stream:
                continue
            yield _case(f"stream{' SSE' if stream else ''}: {act}", "stream", {"DO": act}, stream=stream)
    yield _case("stream with id and parameters", "stream", {"DO": "one two", "id": "x1", "temperature": 0.5}, stream=True)
    yield Case(name="infer on decoupled", path="/v2/models/stream/infer", body=b"{}")


def _ordinary() -> Iterator[Case]:
    for stream in (False, True):
        sse = " SSE" if stream else ""
        yield _case(f"scalar{sse}", "int", {"INPUT0": 7}, stream=stream)
        yield _case(f"list{sse}", "int", {"INPUT0": [1, 2, 3], "id": "abc"}, stream=stream)
        yield _case(f"unknown model{sse}", "nosuch", {"INPUT0": 7}, stream=stream)
        yield _case(f"not JSON{sse}", "int", b"{", stream=stream)
        yield _case(f"missing input{sse}", "int", {"x": 1}, stream=stream)
        yield _case(f"compressed{sse}", "int", {"INPUT0": 7}, stream=stream, Content_Encoding="gzip")
        yield _case(f"identity encoding{sse}", "int", {"INPUT0": 7}, stream=stream, Content_Encoding="identity")
    for model, values in (
        ("int", ([], [[1, 2]], "x", 1.5, True, None, {"a": 1}, [1, "x"], 2**31, 2**40)),
        ("grid", ([1, 2], [1, 2, 3, 4], [1, 2, 3], 1, [])),
        ("wild", ([1, 2, 3], 5)),
        ("fixed", ([1, 2, 3, 4], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8])),
        ("batch", (0.5, [0.5, 1], 3, "x")),
        ("text", ("hello", ["a"], ["a", "b"], 5, '\u00e9"\\\n', "")),
        ("flag", (True, [True, False], 1, "true")),
        ("byte", (255, 256, -1)),
        ("half", (1.0,)),
        ("double", (0.1, [1e300, 2], 3)),
        ("long", (2**64 - 1, -1)),
    ):
        for value in values:
            yield _case(f"{model} {json.dumps(value)}", model, {"INPUT0": value})


def _mapping() -> Iterator[Case]:
    yield _case("two inputs", "two", {"INPUT0": [1, 2], "INPUT1": ["a", "b"]})
    yield _case("optional left out", "two", {"INPUT0": 1})
    yield _case("only the optional one", "two", {"INPUT1": "a"})
    yield _case("twice", "int", b'{"INPUT0": 1, "INPUT0": 2}')
    yield _case("version", "int/versions/1", {"INPUT0": 1})
    yield _case("version of none", "int/versions/9", {"INPUT0": 1})
    yield _case("no object", "int", b"[1]")
    yield _case("empty object", "int", {})
    yield _case("empty body", "int", b"")
    yield _case("own parameters", "seen", {"INPUT0": 1, "t": 0.5, "n": 3, "s": "x", "b": True, "neg": -4, "id": "me"})
    yield _case("parameters object", "seen", {"INPUT0": 1, "parameters": {"t": 0.5, "n": 3, "s": "x", "b": False}})
    yield _case("parameters inside and outside", "seen", {"INPUT0": 1, "k": 1, "parameters": {"k": 2}})
    yield _case("parameters outside after inside", "seen", {"parameters": {"k": 2}, "INPUT0": 1, "k": 1})
    yield _case("parameters not an object", "seen", {"INPUT0": 1, "parameters": 5})
    yield _case("parameters in parameters", "seen", {"INPUT0": 1, "parameters": {"parameters": {"a": 1}}})
    yield _case("input in parameters", "seen", {"parameters": {"INPUT0": 1}})
    yield _case("input in parameters and outside", "seen", {"INPUT0": 1, "parameters": {"INPUT0": 2}})
    yield _case("id in parameters", "seen", {"INPUT0": 1, "parameters": {"id": "me"}})
    yield _case("id is a number", "seen", {"INPUT0": 1, "id": 5})
    yield _case("unknown list", "seen", {"INPUT0": 1, "k": [1, 2]})
    yield _case("unknown object", "seen", {"INPUT0": 1, "k": {"a": 1}})
    yield _case("unknown null", "seen", {"INPUT0": 1, "k": None})
    yield _case("list in parameters", "seen", {"INPUT0": 1, "parameters": {"k": [1]}})
    yield _case("null in parameters", "seen", {"INPUT0": 1, "parameters": {"k": None}})
    yield _case("reserved key", "seen", {"INPUT0": 1, "triton_x": 1})
    yield _case("priority and timeout", "seen", {"INPUT0": 1, "priority": 1, "timeout": 10000000})
    yield _case("timeout text", "seen", {"INPUT0": 1, "timeout": "x"})
    yield _case("sequence", "seen", {"INPUT0": 1, "sequence_id": 5, "sequence_start": True, "sequence_end": True})
    yield _case("sequence text", "seen", {"INPUT0": 1, "sequence_id": "five", "sequence_start": False})
    yield _case("binary_data_output", "seen", {"INPUT0": 1, "binary_data_output": True})
    yield _case("large integer", "seen", {"INPUT0": 1, "n": 2**63})
    yield Case(name="GET generate", method="GET", path="/v2/models/int/generate")
    yield Case(name="stats of stream", method="GET", path="/v2/models/stream/stats")


CASES: tuple[Case, ...] = (*_decoupled(), *_ordinary(), *_mapping())
