"""Asks a server for explanations, and reads its trace file."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import NOT_FOUND
from pathlib import Path

import msgspec
import orjson

from tpy.echo import printable
from tpy.limits import TRACE_FILE_READ_BYTES_MAX
from tpy.messages import ModelExplanation
from tpy_tools.commands.client import Client, ClientError, model_path
from tpy_tools.commands.explain.core import model as model_lines
from tpy_tools.commands.explain.core import request as request_lines

_TRACING = "--trace-config triton,file=trace.json --trace-config level=TIMESTAMPS --trace-config rate=1"


_OTHER_FORM = 200


class _Answer(msgspec.Struct):
    explanations: list[ModelExplanation]


def explanations(client: Client, model: str) -> list[ModelExplanation]:
    """Those of `model`, which may be NAME/versions/N. Raises ClientError."""
    answer = client.get(f"{model_path(model)}/explain")
    try:
        return msgspec.convert(answer, _Answer, strict=False).explanations
    except msgspec.ValidationError as error:
        raise ClientError(
            f"the server's explanation has an unknown form, that of another version of tpy ({error})", _OTHER_FORM
        ) from None


def explain_model(client: Client, model: str) -> list[str]:
    """The lines about a model; about one that is not served, its state and the reason."""
    try:
        found = explanations(client, model)
    except ClientError as error:
        states = _states(client, model) if error.status else []
        if not states:
            raise
        if error.status == NOT_FOUND:
            states.append("  no further details: the server is not tpy, or is an older version")
        return states
    return [line for each in found for line in model_lines.lines_of(each)]


def explain_request(client: Client, model: str, request_id: str, *, trace_file: Path | None, as_json: bool = False) -> list[str]:
    """The lines about a traced request, or one of JSON. Raises ClientError, with what to switch on, where it has no trace."""
    name = model.partition("/versions/")[0]
    if trace_file is None:
        trace_file = _trace_file(client, name)
    paths = [path for path in (trace_file, *_numbered(trace_file)) if path.is_file()]
    if not paths:
        raise ClientError(
            f"there is no file '{trace_file}' here: the server writes it in its own working directory, and when traces are "
            "complete; name it, or a copy of it, with --trace-file"
        )
    found = [trace for path in paths for trace in request_lines.find(read_rows(path), name, request_id)]
    if not found:
        raise ClientError(
            f"no trace of a request '{request_id}' to model '{name}' in {', '.join(map(str, paths))}: the request must carry the "
            "id, and one in `trace_rate` requests is traced (1: all); switch it on with: curl -s "
            f'SERVER/v2/models/{name}/trace/setting -d \'{{"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}}\''
        )
    if as_json:
        return [orjson.dumps({"traces": [request_lines.document_of(trace) for trace in found]}).decode()]
    return [f"request {printable(request_id)}", *(line for trace in found for line in request_lines.lines_of(trace))]


def _trace_file(client: Client, model: str) -> Path:
    settings = client.get(f"{model_path(model)}/trace/setting")
    file = settings.get("trace_file") if isinstance(settings, dict) else None
    if isinstance(settings, dict) and settings.get("trace_mode") == "opentelemetry":
        raise ClientError("the server sends its traces to an OpenTelemetry collector: look there, or start it with " + _TRACING)
    if not file:
        raise ClientError(f"the server writes no traces, and keeps no other record of single requests: start it with {_TRACING}")
    return Path(str(file))


def _numbered(path: Path) -> list[Path]:
    """The files of --trace-config log-frequency, and of counts that were reached, the oldest first."""
    found = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdigit()]
    return sorted(found, key=lambda each: int(each.suffix[1:]))


def read_rows(path: Path) -> list[request_lines.Row]:
    """The rows of a trace file; of a large one, those in its last TRACE_FILE_READ_BYTES_MAX. Raises ClientError for a file
    of another kind."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - TRACE_FILE_READ_BYTES_MAX)
            file.seek(start)
            data = file.read(TRACE_FILE_READ_BYTES_MAX)
    except OSError as error:
        raise ClientError(f"cannot read '{path}': {error.strerror}") from None
    if start:
        data = b"[" + data[data.find(b'{"id":') :]
    try:
        rows = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ClientError(f"'{path}' is not a trace file: {error}") from None
    if not isinstance(rows, list):
        raise ClientError(f"'{path}' is not a trace file: expected a list")
    return rows


def _states(client: Client, model: str) -> list[str]:
    """The versions of a model in the repository, with their states and reasons."""
    name, _, version = model.partition("/versions/")
    try:
        rows = client.post("/v2/repository/index", b"{}")
    except ClientError:
        return []
    return list(_state_lines(rows, name, version))


def _state_lines(rows: object, name: str, version: str) -> Iterator[str]:
    for row in rows if isinstance(rows, list) else ():
        if row.get("name") == name and version in ("", row.get("version", "")):
            of = f", version {row['version']}" if "version" in row else ""
            reason = f": {printable(row['reason'])}" if row.get("reason") else ""
            yield f"{printable(name)}{of}: {row.get('state', 'not loaded')}{reason}"
