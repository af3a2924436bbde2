"""One traced request, as lines: from the rows of a trace file in Triton's form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tpy.echo import printable
from tpy_tools.commands.explain.core.units import duration

Row = Mapping[str, Any]

_PHASES: Final = (
    ("received", ("HTTP_RECV_START", "GRPC_WAITREAD_START"), ("HTTP_RECV_END", "GRPC_WAITREAD_END")),
    ("admitted", ("HTTP_RECV_END", "GRPC_WAITREAD_END"), ("REQUEST_START",)),
    ("in the queue", ("QUEUE_START",), ("COMPUTE_START",)),
    ("inputs made ready", ("COMPUTE_START",), ("COMPUTE_INPUT_END",)),
    ("executed", ("COMPUTE_INPUT_END",), ("COMPUTE_OUTPUT_START",)),
    ("outputs made ready", ("COMPUTE_OUTPUT_START",), ("COMPUTE_END",)),
    ("answered", ("COMPUTE_END",), ("REQUEST_END",)),
    ("sent", ("HTTP_SEND_START", "GRPC_SEND_START"), ("HTTP_SEND_END", "GRPC_SEND_END")),
)


class ExplainedRequest:
    """A trace with its moments by name, and the traces of its steps or calls."""

    def __init__(self, head: Row) -> None:
        self.head = head
        self.moments: dict[str, int] = {}
        self.children: list[ExplainedRequest] = []


def find(rows: Iterable[Row], model: str, request_id: str) -> list[ExplainedRequest]:
    """The traces of the requests with this id to this model, "" for any, the newest last. Rows that are not traces are
    skipped."""
    traces: dict[object, ExplainedRequest] = {}
    for row in rows:
        if not isinstance(row, Mapping) or "id" not in row:
            continue
        if "model_name" in row:
            traces[row["id"]] = ExplainedRequest(row)
        for moment in row.get("timestamps", ()):
            if row["id"] in traces:
                traces[row["id"]].moments[str(moment["name"])] = int(moment["ns"])
    for trace in traces.values():
        parent = traces.get(trace.head.get("parent_id"))
        if parent is not None and parent is not trace:
            parent.children.append(trace)
    asked = [trace for trace in traces.values() if trace.head.get("request_id") == request_id]
    return [trace for trace in asked if (trace.head["model_name"] == model if model else "parent_id" not in trace.head)]


def document_of(trace: ExplainedRequest) -> dict[str, object]:
    """The trace as a JSON document: what its file says of it, its moments, and the traces of its steps and calls."""
    return {**trace.head, "moments_ns": trace.moments, "children": [document_of(child) for child in trace.children]}


def lines_of(trace: ExplainedRequest, indent: str = "") -> Iterator[str]:
    """The phases of the request with their times, then those of its steps and calls."""
    head, moments = trace.head, trace.moments
    total_ns = max(moments.values()) - min(moments.values()) if moments else 0
    yield f"{indent}{printable(str(head['model_name']))}, version {head.get('model_version')}: {duration(total_ns)} altogether"
    spent = [(name, ns) for name, begins, ends in _PHASES if (ns := _between(moments, begins, ends)) is not None]
    for name, ns in spent:
        bar = "#" * round(30 * ns / total_ns) if total_ns else ""
        yield f"{indent}  {name:<19} {duration(ns):>8}  {bar}".rstrip()
    if not moments:
        yield f"{indent}  no timestamps: the trace level is TENSORS alone"
    elif spent:
        name, ns = max(spent, key=lambda item: item[1])
        yield f"{indent}  most of it: {name} ({ns / max(1, total_ns):.0%})"
    for child in trace.children:
        yield from lines_of(child, indent + "    ")


def _between(moments: Mapping[str, int], begins: Iterable[str], ends: Iterable[str]) -> int | None:
    begin = next((moments[name] for name in begins if name in moments), None)
    end = next((moments[name] for name in ends if name in moments), None)
    return None if begin is None or end is None else max(0, end - begin)
