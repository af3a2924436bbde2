"""Management: which models there are, how they are served, and changes of that. Archives are not fetched: models are those of the
model repository."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson

from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpReply, HttpRequest
from tpy.limits import TORCHSERVE_MODELS_DEFAULT, TORCHSERVE_REGISTER_BYTES_MAX
from tpy.messages import LoadRequest, ModelState
from tpy.services import offered
from tpy_platforms.torchserve.answers import UnknownModel, document_reply, status_reply
from tpy_platforms.torchserve.versions import names_of, number_of, ready_versions

_ARCHIVE = re.compile(r"\.(mar|tgz|tar\.gz)$")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NUMBER = re.compile("[0-9]{1,9}")

_EXECUTE_TIMEOUT: Final = "TPY_EXECUTE_TIMEOUT_SECONDS"
_NOT_HERE: Final = {
    "handler": "it is that of the archive, which tpy import has read",
    "runtime": "it is that of the archive, which tpy import has read",
    "startup_timeout": "start the server with --backend-config=python,initialize-timeout-seconds=N",
    "s3_sse_kms": "models are not fetched",
}
"""Parameters of a registration that do not map."""

Settings = Mapping[str, str]


class ManagementApi:
    """The handlers of management."""

    def __init__(self, endpoint: InferEndpoint) -> None:
        self._services = endpoint.services

    async def ping(self, request: HttpRequest) -> HttpReply:
        """Tells whether the server is ready."""
        ready = self._services.repository.server_ready()
        return document_reply({"status": "Healthy" if ready else "Unhealthy"}, 200 if ready else 500)

    async def list_models(self, request: HttpRequest) -> HttpReply:
        """The names of models that are ready, a page at a time."""
        said = _query(request)
        limit, begin = _number(said, "limit", TORCHSERVE_MODELS_DEFAULT), _number(said, "next_page_token", 0)
        names = sorted({entry.name for entry in await self._services.repository.index(ready_only=True)})
        page = names[begin : begin + limit]
        document: dict[str, Any] = {"models": [{"modelName": name, "modelUrl": name} for name in page]}
        if begin + limit <= len(names):
            document = {"nextPageToken": str(begin + limit), **document}
        return document_reply(document)

    async def describe(self, request: HttpRequest, *, model: str, release: str | None = None) -> HttpReply:
        """Describe a model: its newest version, the one of this name, or `all`. Raises NotFound."""
        service = self._services.inference
        ready = ready_versions(service, model)
        if release is None:
            numbers: tuple[int, ...] = (max(ready),)
        else:
            numbers = ready if release == "all" else (number_of(service, model, release),)
        return document_reply([_description(model, number, service.config(model, number)) for number in numbers])

    async def register(self, request: HttpRequest) -> HttpReply:
        """Load a model of the repository, with the settings that are given. Raises TpyError."""
        said = _body_or_query(request)
        name = _name_of(said)
        for parameter, why in _NOT_HERE.items():
            if said.get(parameter):
                raise Unsupported(f"{parameter}: {why}")
        if any(entry.name == name and entry.state is ModelState.READY for entry in await self._services.repository.index()):
            raise InvalidArgument(f"Model {echo(name)} is already registered: scale or unregister it")
        changes = _changes(said, _number(said, "initial_workers", 0))
        await self._load(name, changes)
        config = self._services.inference.config(name)
        release = names_of(config).get(number := max(ready_versions(self._services.inference, name)), str(number))
        return status_reply(f'Model "{name}" Version: {release} registered with {_workers(config)} initial workers')

    async def scale(self, request: HttpRequest, *, model: str, release: str | None = None) -> HttpReply:
        """Load a model again with another number of instances. Raises TpyError."""
        said = _query(request)
        least = _number(said, "min_worker", 1)
        if _number(said, "max_worker", least) < least:
            raise InvalidArgument("max_worker cannot be less than min_worker.")
        if least == 0:
            raise Unsupported("a model that is loaded has instances: unregister it instead")
        self._require_all(model, release)
        await self._load(model, _changes({}, least))
        text = "" if release is None else f", version: {release}"
        return status_reply(f"Workers scaled to {least} for model: {model}{text}")

    async def unregister(self, request: HttpRequest, *, model: str, release: str | None = None) -> HttpReply:
        """Unload a model. Raises TpyError."""
        self._require_all(model, release)
        await self._services.repository.unload(model)
        return status_reply(f'Model "{model}" unregistered')

    async def set_default(self, request: HttpRequest, *, model: str, release: str) -> HttpReply:
        """Refused. Raises Unsupported, NotFound."""
        number_of(self._services.inference, model, release)
        raise Unsupported("requests without a version go to the newest one: set version_policy in config.pbtxt")

    def _require_all(self, model: str, release: str | None) -> None:
        """Raise Unsupported for one version of several: a model is loaded and unloaded as a whole."""
        ready = ready_versions(self._services.inference, model)
        if release is not None and number_of(self._services.inference, model, release) and len(ready) > 1:
            raise Unsupported("versions are loaded and unloaded together: set version_policy in config.pbtxt")

    async def _load(self, name: str, changes: Callable[[dict[str, Any]], None] | None) -> None:
        try:
            check = await offered(self._services.checks).check_config(name)
        except InvalidArgument:
            raise UnknownModel(f"Model not found: {echo(name)}: it is not in the model repository") from None
        config = None
        if changes is not None and check.config_json:
            document = orjson.loads(check.config_json)
            changes(document)
            config = orjson.dumps(document).decode()
        await self._services.repository.load(LoadRequest(model_name=name, config_json=config))


def _query(request: HttpRequest) -> Settings:
    return dict(parse_qsl(request.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True, encoding="utf-8"))


def _body_or_query(request: HttpRequest) -> Settings:
    """The parameters of a registration, of its JSON or its query. Raises InvalidArgument."""
    kind = request.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json" or not request.body:
        return _query(request)
    if len(request.body) > TORCHSERVE_REGISTER_BYTES_MAX:
        raise InvalidArgument(f"a registration has at most {TORCHSERVE_REGISTER_BYTES_MAX} bytes")
    try:
        document = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"expected JSON: {error}") from None
    if type(document) is not dict or any(type(value) not in (str, int, bool, type(None)) for value in document.values()):
        raise InvalidArgument("expected an object of names and values")
    return {name: str(value) for name, value in document.items() if value is not None}


def _number(said: Settings, name: str, default: int) -> int:
    text = said.get(name, "")
    if not text:
        return default
    if _NUMBER.fullmatch(text) is None:
        raise InvalidArgument(f"{name}: expected a number, got '{echo(text)}'")
    return int(text)


def _name_of(said: Settings) -> str:
    """The name of the model that a registration is for. Raises InvalidArgument, Unsupported."""
    url = said.get("url", "")
    if not url:
        raise InvalidArgument("Parameter url is required.")
    if _ADDRESS.match(url):
        raise Unsupported(
            f"'{echo(url)}': archives are not fetched; fetch it, tpy import it into the model repository, and register its name"
        )
    name = _ARCHIVE.sub("", PurePosixPath(url).name)
    wanted = said.get("model_name") or name
    if wanted != name:
        raise Unsupported(f"model_name: a model has the name of its folder, '{echo(name)}': rename that")
    return name


def _changes(said: Settings, workers: int) -> Callable[[dict[str, Any]], None] | None:
    """Returns what makes the changes of the parameters in a configuration; None for none."""
    rows, delay_ms = _number(said, "batch_size", 0), _number(said, "max_batch_delay", 0)
    answer_s = _number(said, "response_timeout", 0)
    if not (rows or delay_ms or answer_s or workers):
        return None

    def change(config: dict[str, Any]) -> None:
        batching = config.get("dynamic_batching")
        if rows:
            config["max_batch_size"] = rows
        if delay_ms:
            config["dynamic_batching"] = {**(batching or {}), "max_queue_delay_microseconds": delay_ms * 1000}
        if answer_s:
            parameters = config.setdefault("parameters", {})
            parameters[_EXECUTE_TIMEOUT] = {"string_value": str(answer_s)}
        if workers:
            groups = config.get("instance_group") or [{}]
            config["instance_group"] = [{**groups[0], "count": workers}]

    return change


def _workers(config: ModelConfig) -> int:
    return sum(group.count * max(len(group.gpus), 1) for group in config.instance_group)


def _description(name: str, number: int, config: ModelConfig) -> dict[str, Any]:
    workers = _workers(config)
    batching = config.dynamic_batching
    on_gpu = any(group.kind is InstanceKind.KIND_GPU for group in config.instance_group)
    timeout = config.parameter(_EXECUTE_TIMEOUT)
    return {
        "modelName": name,
        "modelVersion": names_of(config).get(number, str(number)),
        "modelUrl": name,
        "runtime": config.backend,
        "minWorkers": workers,
        "maxWorkers": workers,
        "batchSize": max(config.max_batch_size, 1),
        "maxBatchDelay": 0 if batching is None else batching.max_queue_delay_microseconds // 1000,
        **({"responseTimeout": int(timeout)} if timeout.isascii() and timeout.isdigit() and len(timeout) < 10 else {}),
        "deviceType": "gpu" if on_gpu else "cpu",
        "workers": [{"id": f"{number}_{at}", "status": "READY", "gpu": on_gpu} for at in range(workers)],
    }
