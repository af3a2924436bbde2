"""KServe's older protocol, v1: `POST /v1/models/NAME:predict` with rows in plain JSON, and who is ready.

A request is `{"instances": [row, ...]}`, where a row is the value of the only input or an object with a member for each, or
`{"inputs": {name: rows, ...}}`. The answer is `{"predictions": [row, ...]}` in the same way. Rows become the tensors of a v2
request, which is served as any other. Source: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument, NotFound
from tpy.frontends.access import ALL_ROLES
from tpy.frontends.http.codec.document import is_heavy
from tpy.frontends.http.codec.json_text import parse_json
from tpy.frontends.http.codec.response import dump_json, nested
from tpy.frontends.http.infer import InferEndpoint, infer
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, json_reply
from tpy.frontends.threads import run_in_thread
from tpy.limits import HTTP_V1_BODY_BYTES_MAX, TENSOR_DIMS_MAX
from tpy.messages import DataType, ModelDescription, ModelState, TensorDescription

_BODY: Final = 'a body is {"instances": [row, ...]} or {"inputs": {name: rows, ...}}'
_BASE64: Final = "b64"
_ONE_COLUMN: Final = 1


class PredictApi:
    """The handlers of v1's routes."""

    def __init__(self, endpoint: InferEndpoint) -> None:
        self._endpoint = endpoint

    async def models(self, request: HttpRequest) -> HttpReply:
        """The names of the models that are ready, as far as their descriptions are for the sender."""
        entries = await self._endpoint.services.repository.index()
        names = {entry.name for entry in entries if entry.state is ModelState.READY}
        caller = request.caller
        if caller is not None:
            names = {name for name in names if caller.grant.allows(ALL_ROLES, name)}
        return _json({"models": sorted(names)})

    async def ready(self, request: HttpRequest, *, model: str) -> HttpReply:
        """Tells if a model is ready, by 503 that it is not. Raises NotFound for one that is unknown."""
        repository = self._endpoint.services.repository
        if not any(entry.name == model for entry in await repository.index()):
            raise NotFound(f"Model with name {echo(model)} does not exist.")
        ready = await repository.model_ready(model)
        return _json({"name": model, "ready": ready}, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def predict(self, request: HttpRequest, *, model: str) -> HttpReply:
        """One inference of all rows. Raises TpyError for rows that do not fit, with the input and both shapes."""
        endpoint = self._endpoint
        description = endpoint.services.inference.resolve(model).description
        request.sent_bytes = len(request.body)
        if is_heavy(request.body):
            request.body = await run_in_thread(_v2_request, request.body, description, limiter=endpoint.threads)
        else:
            request.body = _v2_request(request.body, description)
        request.headers = [field for field in request.headers if field[0].lower() not in _OF_THE_BODY]
        request.fields = {name: value for name, value in request.fields.items() if name not in _OF_THE_BODY}
        reply = await infer(endpoint, request, model, str(description.version), protocol="kserve-v1")
        if reply.status != HTTPStatus.OK:
            return reply
        if reply.content_length > _INLINE_ANSWER_BYTES_MAX:
            return await run_in_thread(_v1_reply, reply, limiter=endpoint.threads)
        return _v1_reply(reply)


_OF_THE_BODY: Final = frozenset((b"inference-header-content-length", b"accept-encoding"))
"""Headers that a v2 request understands and this one does not have."""
_INLINE_ANSWER_BYTES_MAX: Final = 32 * 1024


def _json(document: object, status: int = HTTPStatus.OK) -> HttpReply:
    return json_reply(dump_json(document), status=status)


def _v2_request(body: Body, description: ModelDescription) -> bytes:
    """The JSON of a v2 request with the rows of `body`. Raises InvalidArgument."""
    if len(body) > HTTP_V1_BODY_BYTES_MAX:
        raise InvalidArgument(
            f"a v1 request has at most {HTTP_V1_BODY_BYTES_MAX} bytes, this one has {len(body)}: /v2/models/NAME/infer takes more"
        )
    document = parse_json(body)
    if type(document) is not dict:
        raise InvalidArgument(_BODY)
    columns = _columns(document, description)
    try:
        inputs = [_tensor(described, columns[described.name]) for described in description.inputs if described.name in columns]
        return dump_json({"inputs": inputs})
    except (RecursionError, Internal):
        raise InvalidArgument("the rows are nested too deeply") from None


def _columns(document: Mapping[str, object], description: ModelDescription) -> dict[str, object]:
    """The values of each input. Raises InvalidArgument for names that are not inputs, and rows with different names."""
    names = [described.name for described in description.inputs]
    instances, inputs = document.get("instances"), document.get("inputs")
    if type(instances) is list and instances and inputs is None:
        rows = [row for row in instances if type(row) is dict and set(row) != {_BASE64}]
        if not rows:
            return {_only(names): instances}
        first = set(rows[0])
        if len(rows) != len(instances) or any(set(row) != first for row in rows):
            raise InvalidArgument("'instances': every row has to be an object with the same members, or none has to be one")
        columns: dict[str, object] = {name: [row[name] for row in rows] for name in rows[0]}
    elif inputs is not None and instances is None:
        columns = inputs if type(inputs) is dict and set(inputs) != {_BASE64} else {_only(names): inputs}
    else:
        raise InvalidArgument(_BODY)
    for name in columns:
        if name not in names:
            raise InvalidArgument(f"unexpected input '{echo(name)}', the model has {', '.join(names)}")
    return columns


def _only(names: list[str]) -> str:
    if len(names) != 1:
        raise InvalidArgument(f"the model has {len(names)} inputs, so a row is an object with the members {', '.join(names)}")
    return names[0]


def _tensor(described: TensorDescription, values: object) -> dict[str, object]:
    """The v2 input. A row of one element may stand without brackets, as may the only row of a model without batches."""
    shape = _shape_of(values)
    if len(shape) > TENSOR_DIMS_MAX:
        raise InvalidArgument("the rows are nested too deeply")
    if len(shape) + 1 == len(described.shape) and described.shape[-1] == _ONE_COLUMN:
        shape.append(_ONE_COLUMN)
    elif len(shape) == len(described.shape) + 1 and shape[0] == 1:
        del shape[0]
    if described.datatype is DataType.BYTES:
        values = _decoded(values, described.name)
    elif described.datatype in (DataType.FP32, DataType.FP64):
        values = _with_nan(values)
    data = values if type(values) is list else [values]
    return {"name": described.name, "datatype": described.datatype.value, "shape": shape, "data": data}


def _shape_of(values: object) -> list[int]:
    """The lengths of nested lists, by the first of each: what does not agree is refused where the elements are counted."""
    shape: list[int] = []
    while type(values) is list:
        shape.append(len(values))
        values = values[0] if values else None
    return shape


def _decoded(values: object, name: str) -> object:
    """`values` with the strings of `{"b64": "..."}` in their places. Raises InvalidArgument for what is not base64, and for bytes
    that are not UTF-8, which JSON cannot carry to a model."""
    if type(values) is list:
        return [_decoded(value, name) for value in values]
    if type(values) is dict and set(values) == {_BASE64} and type(values[_BASE64]) is str:
        try:
            return base64.b64decode(values[_BASE64], validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise InvalidArgument(f"input '{echo(name)}': b64 does not hold base64 of UTF-8 text: {error}") from None
    return values


def _with_nan(values: object) -> object:
    """`values` with NaN in place of null, which is how tables write a value that is missing."""
    if type(values) is list:
        if type(values[0] if values else 0) is not list and None not in values:
            return values
        return [_with_nan(value) for value in values]
    return math.nan if values is None else values


def _v1_reply(reply: HttpReply) -> HttpReply:
    """The predictions: rows of the only output, or objects with a member for each; columns where outputs have no common rows."""
    document = cast("dict[str, list[dict[str, Any]]]", parse_json(b"".join(reply.parts)))  # our own answer; it may hold NaN
    columns = {output["name"]: nested(output["data"], output["shape"]) for output in document["outputs"]}
    counts = {len(column) if type(column) is list else -1 for column in columns.values()}
    predictions: object = columns
    if len(columns) == 1:
        predictions = next(iter(columns.values()))
    elif len(counts) == 1 and counts != {-1}:
        lists = [column for column in columns.values() if type(column) is list]
        predictions = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    return _json({"predictions": predictions})
