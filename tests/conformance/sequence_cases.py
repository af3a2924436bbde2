"""The requests of the sequence transcripts, in the order in which they are sent: over HTTP one after the other, then streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tritonclient.grpc import service_pb2 as pb

from .cases import Case
from .grpc_cases import GrpcCase
from .sequence_repository import IDLE_MS

Id = int | str | None


def _infer(
    name: str,
    model: str,
    id: Id = None,
    flags: str = "",
    *,
    x: int = 1,
    rows: int = 1,
    request_id: str = "",
    more: Sequence[dict[str, object]] = (),
    **parameters: object,
) -> Case:
    """`flags`: S for start, E for end; s and e for the same with the value false."""
    shape = [1] if model in ("unbatched", "sleep") else [rows, 1]
    if id is not None:
        parameters["sequence_id"] = id
    for flag in flags:
        parameters["sequence_start" if flag in "Ss" else "sequence_end"] = flag in "SE"
    body: dict[str, object] = {"inputs": [{"name": "X", "shape": shape, "datatype": "INT32", "data": [x] * rows}, *more]}
    if parameters:
        body["parameters"] = parameters
    if request_id:
        body["id"] = request_id
    return Case(name=name, path=f"/v2/models/{model}/infer", body=json.dumps(body).encode())


def _wait(name: str, ms: int) -> Case:
    return _infer(name, "sleep", x=ms)


def _numbered(title: str, model: str, steps: Sequence[tuple[Id, str, int]]) -> Iterator[Case]:
    for number, (id, flags, x) in enumerate(steps, 1):
        yield _infer(f"{title}: {number}. {id} {flags}".rstrip(), model, id, flags, x=x)


def _http() -> Iterator[Case]:
    for id in (None, 0, "", 5, "five"):
        yield _infer(f"no start: {id!r}", "direct", id)
    yield _infer("start without id", "direct", None, "S")
    yield _infer("two rows", "direct", 5, "S", rows=2)
    yield _infer("two rows and no id", "direct", rows=2)
    yield _infer("too many rows", "direct", 5, "S", rows=5)
    yield _infer("long id", "direct", "x" * 129, "S")
    yield _infer("longest id", "bare", "x" * 128, "SE")
    for value in (1.5, True, 2**64):
        yield _infer(f"id {value!r}", "direct", value, "S")  # type: ignore[arg-type]  # that is the point
    yield _infer("start is text", "direct", 5, sequence_start="yes")
    yield _infer("largest id", "direct", 2**64 - 1, "SE")
    control: dict[str, object] = {"name": "START", "shape": [1, 1], "datatype": "INT32", "data": [1]}
    yield _infer("a control of one's own", "direct", 5, "S", more=[control])
    yield _infer("with request id and parameters", "direct", 5, "SE", request_id="r1", x=7, colour="red")
    steps: list[tuple[Id, str, int]] = [(1, "S", 1), (1, "", 2), (1, "s", 3), (1, "E", 4), (1, "", 5), (1, "SE", 6), (1, "e", 7)]
    for model in ("direct", "unbatched", "oldest", "bare", "other"):
        yield from _numbered(f"{model} alone", model, steps)
    places: list[tuple[Id, str, int]] = [
        *((11, "S", 1), (12, "S", 10), (13, "S", 100), (12, "", 20), (13, "", 200), (11, "E", 2), (13, "", 300)),
        *((14, "S", 1000), (13, "E", 400), (14, "E", 2000), (12, "E", 30)),
    ]
    yield from _numbered("places", "direct", places)
    yield from _numbered("interleaved", "oldest", [(1, "S", 1), (2, "S", 10), (1, "", 2), (2, "", 20), (2, "E", 30), (1, "E", 3)])
    yield from _numbered("start again", "direct", [(21, "S", 1), (21, "", 2), (21, "S", 5), (21, "E", 6), (21, "", 1)])
    yield from _numbered("failing", "direct", [(22, "S", 1), (22, "", 13), (22, "E", 2)])
    for model in ("int64", "uint32", "other"):
        yield from _numbered(f"{model} ids", model, [(2**33 + 5, "SE", 1), (2**63 + 1, "SE", 1)])
    yield from _idle("direct")
    yield from _idle("oldest")
    for model in ("iterating", "iterating_direct"):
        for number, (id, flags, x) in enumerate([(None, "", 3), (None, "E", 2), (5, "", 2), (5, "S", 3), (5, "", 2)]):
            yield _infer(f"{model}: {number}. {id} {flags}", model, id, flags, x=x, request_id=f"{model} {number}")
    for model in ("direct", "oldest"):
        yield Case(name=f"statistics of {model}", method="GET", path=f"/v2/models/{model}/stats")
        yield Case(name=f"metadata of {model}", method="GET", path=f"/v2/models/{model}")


def _idle(model: str) -> Iterator[Case]:
    """The time counts from the last request."""
    yield _infer(f"idle {model}: start", model, 31, "S")
    yield _wait(f"idle {model}: not long enough", IDLE_MS * 2 // 3)
    yield _infer(f"idle {model}: goes on", model, 31)
    yield _wait(f"idle {model}: not long enough again", IDLE_MS * 2 // 3)
    yield _infer(f"idle {model}: goes on again", model, 31)
    yield _wait(f"idle {model}: too long", IDLE_MS * 5 // 3)
    yield _infer(f"idle {model}: too late", model, 31)


HTTP_CASES: tuple[Case, ...] = tuple(_http())


def _stream(name: str, model: str, steps: Sequence[tuple[Id, str, int]]) -> GrpcCase:
    messages = []
    for number, (id, flags, x) in enumerate(steps):
        request = pb.ModelInferRequest(model_name=model, id=str(number))
        request.inputs.add(name="X", datatype="INT32", shape=[1, 1]).contents.int_contents.append(x)
        if isinstance(id, str):
            request.parameters["sequence_id"].string_param = id
        elif id is not None:
            request.parameters["sequence_id"].int64_param = id
        for flag in flags:
            request.parameters["sequence_start" if flag == "S" else "sequence_end"].bool_param = True
        messages.append(request.SerializeToString())
    return GrpcCase(name=name, method="ModelStreamInfer", messages=tuple(messages))


STREAMS: tuple[GrpcCase, ...] = (
    _stream("one sequence", "single", [(1, "S", 1), (1, "", 2), (1, "E", 3), (1, "", 4)]),
    _stream("two that wait for each other", "single", [(1, "S", 1), (2, "S", 10), (2, "E", 20), (1, "", 2), (1, "E", 3)]),
    _stream("three in a row", "single", [(number, flags, number) for flags in ("S", "", "E") for number in (3, 1, 2)]),
    _stream("more than there are places", "oldest", [(id, flags, id) for flags in ("S", "", "E") for id in (1, 2, 3, 4, 5)]),
    _stream("without start", "oldest", [(None, "", 1), (9, "", 1), (8, "S", 1), (9, "E", 1), (8, "E", 2)]),
    _stream("begun again", "oldest", [(1, "S", 1), (1, "", 2), (1, "S", 10), (1, "", 20), (1, "E", 30)]),
)
