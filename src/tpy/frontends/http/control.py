"""Every route but inference: from the parts of a request to the reply, by asking the services.

Bodies follow Triton member by member. Methods raise TpyError; statuses are the caller's business.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from typing import Final

import msgspec
import orjson
import trio

from tpy import limits
from tpy.config import ModelConfig, to_json
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, Unsupported
from tpy.frontends.documents import index_document, statistics_document, tensor_document
from tpy.frontends.http.codec.document import (
    NON_ARRAY,
    NON_BOOLEAN,
    NON_STRING,
    NON_UNSIGNED,
    is_heavy,
    is_unsigned,
    load_document,
    shown,
)
from tpy.frontends.http.codec.pieces import LongString
from tpy.frontends.http.infer import parse_version
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, health_reply, json_reply, query_number
from tpy.frontends.threads import run_in_thread
from tpy.messages import LoadRequest, LogSettings
from tpy.services import Services, TraceUpdates, offered

Json = dict[str, object]

_DONE: Final = HttpReply()
_NO_REPOSITORY_NAME: Final = "'repository_name' specification is not supported"
_NON_OBJECT: Final = "attempt to get members for non-object"
_FILE_PREFIX: Final = "file:"
_NOT_GIVEN: Final = object()
_PLAN_DEPTH_MAX: Final = 8
"""Arrays and objects in each other in the plan of a rollout, which needs three."""
_TRACE_LEVEL: Final = "trace_level"
_TRACE_SETTINGS: Final = frozenset((_TRACE_LEVEL, "trace_rate", "trace_count", "log_frequency", "trace_file"))


class ControlApi:
    """The routes of one HTTP port. Each method takes the request and what its URL names (versions as digits)."""

    def __init__(self, services: Services, *, threads: trio.CapacityLimiter) -> None:
        self._services = services
        self._threads = threads

    # Health

    async def live(self, request: HttpRequest) -> HttpReply:
        return health_reply(self._services.repository.server_live())

    async def ready(self, request: HttpRequest) -> HttpReply:
        return health_reply(self._services.repository.server_ready())

    async def model_ready(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        if not model:
            raise InvalidArgument("Missing model name in ModelReady request")
        if not await self._services.repository.model_ready(model, parse_version(version)):
            raise InvalidArgument("Model version not ready")
        return health_reply(True)

    # Descriptions

    async def server_metadata(self, request: HttpRequest) -> HttpReply:
        metadata = self._services.diagnostics.server_metadata()
        return _json({"name": metadata.name, "version": metadata.version, "extensions": list(metadata.extensions)})

    async def model_metadata(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        asked = parse_version(version)
        description = self._services.inference.resolve(model, asked).description
        versions = self._services.inference.ready_versions(model) if asked is None else (asked,)
        return await self._made(
            lambda: {
                "name": description.name,
                "versions": [str(number) for number in versions],
                "platform": description.platform,
                "inputs": [tensor_document(tensor) for tensor in description.inputs],
                "outputs": [tensor_document(tensor) for tensor in description.outputs],
            },
            entries=len(versions) + len(description.inputs) + len(description.outputs),
        )

    async def model_config(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        return json_reply(await self._services.inference.config_forms(model, parse_version(version)).encoded(_config))

    async def statistics(self, request: HttpRequest, *, model: str = "", version: str | None = None) -> HttpReply:
        found = await self._services.diagnostics.statistics(model, parse_version(version))
        return await self._made(
            lambda: {"model_stats": [statistics_document(entry) for entry in found]},
            entries=sum(1 + len(entry.batches) + len(entry.responses) for entry in found),
        )

    async def explain(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        found = await self._services.diagnostics.explain(model, parse_version(version))
        return json_reply(msgspec.json.encode({"explanations": found}))

    async def graph(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        found = await self._services.diagnostics.graph(model, parse_version(version))
        return json_reply(msgspec.json.encode(found))

    # Repository

    async def index(self, request: HttpRequest, *, repository: str = "") -> HttpReply:
        """All models, whatever repository the path names, as in Triton."""
        document = await self._document(request.body)
        ready = document.get("ready", False)
        if type(ready) is not bool:
            raise InvalidArgument("Invalid value for 'ready': expected a boolean")
        found = await self._services.repository.index(ready_only=ready)
        return await self._made(lambda: [index_document(entry) for entry in found], entries=len(found))

    async def load(self, request: HttpRequest, *, model: str, repository: str = "") -> HttpReply:
        _refuse_repository(repository)
        body, request.body = request.body, b""  # a load may take minutes: do not keep its body that long
        if is_heavy(body):
            load = await run_in_thread(_load_request, model, body, limiter=self._threads)
        else:
            load = _load_request(model, body)
        del body
        await self._services.repository.load(load)
        return _DONE

    async def check(self, request: HttpRequest, *, model: str, repository: str = "") -> HttpReply:
        """Checks the configuration of a load call, or without one that of the repository."""
        _refuse_repository(repository)
        checks = offered(self._services.checks)
        document = await self._document(request.body)
        given: str | None = None
        if (config := _parameters(document).get("config", _NOT_GIVEN)) is not _NOT_GIVEN:
            if not isinstance(config, str | LongString):
                raise InvalidArgument(NON_STRING)
            given = config.decode() if isinstance(config, LongString) else config
        found = await checks.check_config(model, given)
        return await self._made(
            lambda: {
                "problems": msgspec.to_builtins(found.problems),
                "file": found.file,
                "text": found.text,
                "config": orjson.loads(found.config_json) if found.config_json else None,
                "versions": [str(version) for version in found.versions],
                "selected": [str(version) for version in found.selected],
            },
            entries=len(found.text) + len(found.config_json or ""),
        )

    async def unload(self, request: HttpRequest, *, model: str, repository: str = "") -> HttpReply:
        _refuse_repository(repository)
        dependents = _parameters(await self._document(request.body)).get("unload_dependents", False)
        if type(dependents) is not bool:
            raise InvalidArgument(NON_BOOLEAN)
        if dependents and request.caller is not None:  # they have other names
            request.caller.authorize("model-repository", None, changes=True)
        await self._services.repository.unload(model, unload_dependents=dependents)
        return _DONE

    async def rollout(self, request: HttpRequest, *, model: str, repository: str = "") -> HttpReply:
        _refuse_repository(repository)
        return json_reply(msgspec.json.encode(await self._services.diagnostics.rollout(model)))

    async def change_rollout(self, request: HttpRequest, *, model: str, repository: str = "") -> HttpReply:
        _refuse_repository(repository)
        if len(request.body) > limits.ROLLOUT_BODY_BYTES_MAX:
            raise InvalidArgument(f"the body has {len(request.body)} bytes, expected at most {limits.ROLLOUT_BODY_BYTES_MAX}")
        document = await self._document(request.body)
        action = document.get("action")
        if not isinstance(action, str):
            raise InvalidArgument('expected {"action": "start"}, {"action": "promote"} or {"action": "roll_back"}')
        text = _plan_text(document["plan"]) if "plan" in document else ""
        return json_reply(msgspec.json.encode(await self._services.diagnostics.rollout(model, action or "none", text)))

    # Settings

    async def log_settings(self, request: HttpRequest) -> HttpReply:
        return self._log_settings()

    async def update_log_settings(self, request: HttpRequest) -> HttpReply:
        changes = await self._document(request.body, required=True)
        await self._services.diagnostics.update_log_settings(_changed(self._services.diagnostics.log_settings(), changes))
        return self._log_settings()

    async def log_tail(self, request: HttpRequest) -> HttpReply:
        """The log's newest lines, those after the number `after` of the query."""
        found = await offered(self._services.log).lines_after(query_number(request.target, "after"))
        lines = [{"number": line.number, "text": line.text} for line in found]
        return json_reply(orjson.dumps({"lines": lines}), headers=(("Cache-Control", "no-store"),))

    async def trace_settings(self, request: HttpRequest, *, model: str = "") -> HttpReply:
        return await self._trace_settings(model, None)

    async def recent_traces(self, request: HttpRequest) -> HttpReply:
        """The newest traced requests, those after the number `after` of the query."""
        found = await offered(self._services.traces).recent_after(query_number(request.target, "after"))
        return json_reply(msgspec.json.encode({"traces": found}), headers=(("Cache-Control", "no-store"),))

    async def labels(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        """The labels of each output that has any."""
        outputs = self._services.inference.resolve(model, parse_version(version)).description.outputs
        return await self._made(
            lambda: {"labels": {output.name: list(output.labels) for output in outputs if output.labels}},
            entries=sum(1 + len(output.labels) for output in outputs),
        )

    async def update_trace_settings(self, request: HttpRequest, *, model: str = "") -> HttpReply:
        updates = _trace_updates(await self._document(request.body, required=True))
        return await self._trace_settings(model, updates)

    # Parts

    async def _made(self, make: Callable[[], object], *, entries: int) -> HttpReply:
        """The document that `make` makes as a reply; one of many entries is made in a thread."""
        if entries <= limits.HTTP_INLINE_ENTRIES_MAX:
            return _json(make())
        return await run_in_thread(lambda: _json(make()), limiter=self._threads)

    def _log_settings(self) -> HttpReply:
        return _json(msgspec.to_builtins(self._services.diagnostics.log_settings()))

    async def _trace_settings(self, model: str, updates: TraceUpdates | None) -> HttpReply:
        """The trace settings, after an update. Raises InvalidArgument, as Triton does here, unless `model` is "" or known."""
        if model:
            try:
                self._services.inference.ready_versions(model)
            except NotFound:
                raise InvalidArgument(f"Request for unknown model : {echo(model)}") from None
        settings = await self._services.diagnostics.trace_settings(model, updates)
        return _json({name: list(texts) if name == _TRACE_LEVEL else texts[0] for name, texts in settings.items()})

    async def _document(self, body: Body, *, required: bool = False) -> Json:
        if is_heavy(body):
            return await run_in_thread(_object_of, body, limiter=self._threads)
        return _object_of(body) if required or len(body) else {}


def _json(document: object) -> HttpReply:
    return json_reply(orjson.dumps(document))


def _config(config: ModelConfig) -> bytes:
    return orjson.dumps(to_json(config))


def _trace_updates(document: Json) -> dict[str, tuple[str, ...]]:
    """The settings of an update: no levels change nothing, as in Triton. Raises InvalidArgument for one of another type."""
    updates = {}
    for name, value in document.items():
        if name not in _TRACE_SETTINGS or value == []:
            continue
        if value is None:
            value = []
        elif name != _TRACE_LEVEL:
            value = [value]
        elif type(value) is not list:
            raise InvalidArgument(NON_ARRAY)
        if any(type(text) is not str for text in value):
            raise InvalidArgument(NON_STRING)
        updates[name] = tuple(value)
    return updates


def _refuse_repository(repository: str) -> None:
    if repository:
        raise Unsupported(_NO_REPOSITORY_NAME)


def _object_of(body: Body) -> Json:
    return _members(load_document(body))


def _members(value: object) -> Json:
    """The object; null and an empty array, as which some clients write an empty map, have no members. Raises InvalidArgument."""
    if value is None or (type(value) is list and not value):
        return {}
    if type(value) is not dict:
        raise InvalidArgument(_NON_OBJECT)
    return value


def _plan_text(plan: object) -> str:
    """The plan of a rollout as JSON text, as the engine reads it. Raises InvalidArgument for one that has no such text."""
    _refuse_unwritable(plan, "plan", 0)
    return msgspec.json.encode(plan).decode()


def _refuse_unwritable(value: object, place: str, depth: int) -> None:
    """Raises InvalidArgument for NaN and Infinity, which would become null, so a gate less, and for what is nested too deeply."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"'{echo(place)}' is {shown(value)}, expected a finite number or null")
    if depth > _PLAN_DEPTH_MAX:
        raise InvalidArgument(f"'{echo(place)}' is nested more than {_PLAN_DEPTH_MAX} deep, expected a plan of a rollout")
    if isinstance(value, dict):
        for name, member in value.items():
            _refuse_unwritable(member, f"{place}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _refuse_unwritable(member, f"{place}[{index}]", depth + 1)


def _parameters(document: Json) -> Json:
    return _members(document.get("parameters"))


def _load_request(model: str, body: Body) -> LoadRequest:
    """The load call in `body`. Raises InvalidArgument for an unknown key, and for content that is not base64."""
    config: str | None = None
    files: dict[str, bytes] = {}
    size = 0
    parameters = _parameters(_object_of(body) if len(body) else {})
    if len(parameters) > limits.LOAD_OVERRIDE_FILES_MAX:
        raise InvalidArgument(f"a load call has at most {limits.LOAD_OVERRIDE_FILES_MAX} parameters")
    for key, value in parameters.items():
        if key != "config" and not key.startswith(_FILE_PREFIX):
            raise InvalidArgument("unexpected error on creating Triton parameter")
        if not isinstance(value, str | LongString):
            raise InvalidArgument(NON_STRING)
        if key == "config":
            config = value.decode() if isinstance(value, LongString) else value
            continue
        try:
            content = _from_base64(value)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgument(f"load parameter '{echo(key)}' is not base64: {error}") from None
        size += len(content)
        if size > limits.LOAD_OVERRIDE_BYTES_MAX:
            raise InvalidArgument(f"file overrides exceed {limits.LOAD_OVERRIDE_BYTES_MAX} bytes")
        files[key.removeprefix(_FILE_PREFIX)] = content
    return LoadRequest(model_name=model, config_json=config, files=files)


def _from_base64(value: str | LongString) -> bytes:
    """The bytes in `value`, of a long one in pieces. Raises ValueError, and InvalidArgument for a malformed string."""
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    content, rest = bytearray(), ""
    for piece in value.pieces():
        rest += piece
        whole = len(rest) - len(rest) % 4
        # Padding belongs to the end: it would hide what follows it.
        if "=" not in rest[:whole]:
            content += base64.b64decode(rest[:whole], validate=True)
            rest = rest[whole:]
    content += base64.b64decode(rest, validate=True)
    return bytes(content)


def _changed(settings: LogSettings, changes: Json) -> LogSettings:
    """`settings` with `changes` applied; null and unknown members change nothing, as in Triton. Raises Unsupported for
    a log file and InvalidArgument for a wrong type."""
    values = {key: value for key, value in changes.items() if value is not None}
    if "log_file" in values:
        raise Unsupported("log file location can not be updated through network protocol")
    for name in ("log_info", "log_warning", "log_error"):
        if name in values and type(values[name]) is not bool:
            raise InvalidArgument(NON_BOOLEAN)
    level = values.get("log_verbose_level", 0)
    if type(level) is not int or not is_unsigned(level):
        raise InvalidArgument(NON_UNSIGNED)
    if type(values.get("log_format", "")) is not str:
        raise InvalidArgument(NON_STRING)
    return msgspec.structs.replace(
        settings, **{name: value for name, value in values.items() if name in LogSettings.__struct_fields__}
    )
