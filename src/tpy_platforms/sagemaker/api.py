"""The routes of SageMaker's containers. Errors are 400, as Triton's are here, but for a few that SageMaker acts upon."""

from __future__ import annotations

import logging

import msgspec
import orjson
import trio

from tpy import limits
from tpy.errors import AlreadyExists, InvalidArgument, NotFound, TpyError, Unsupported
from tpy.frontends.http.binary_type import infer_with_type
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.generate import GenerateApi, StreamReply
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpReply, HttpRequest, error_reply, json_reply
from tpy.frontends.threads import run_in_thread
from tpy.messages import LoadRequest, ModelState
from tpy.services import RegistrationService
from tpy_platforms.sagemaker.models import SageMakerModel, find_model, is_out_of_memory

_log = logging.getLogger(__name__)

_TYPE_PREFIX = "application/vnd.sagemaker-triton.binary+json;json-header-size="
_TARGET = b"x-amzn-sagemaker-target-model"
_CONFLICT = 409
_INSUFFICIENT_STORAGE = 507
_ACCESS = frozenset((401, 403, 429))
"""The statuses of refused callers."""


class _LoadBody(msgspec.Struct, kw_only=True):
    """The body of a load call."""

    model_name: str
    url: str


_decode_load_body = msgspec.json.Decoder(_LoadBody).decode


def sagemaker_error(error: TpyError) -> HttpReply:
    """The answer that reports `error`: 507 when memory is short, 409 for a model that is loaded, those of access, else 400."""
    reply = error_reply(error)
    if is_out_of_memory(error.message):
        return msgspec.structs.replace(reply, status=_INSUFFICIENT_STORAGE)
    if isinstance(error, AlreadyExists):
        return msgspec.structs.replace(reply, status=_CONFLICT)
    return reply if reply.status in _ACCESS else msgspec.structs.replace(reply, status=400)


class SageMakerApi:
    """The handlers. `model` is the one at /invocations, `form` what is asked there."""

    def __init__(self, endpoint: InferEndpoint, *, model: str, form: str, ping_mode: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self._form = form
        self._ping_mode = ping_mode
        self._control = ControlApi(endpoint.services, threads=endpoint.threads)
        self._generate = GenerateApi(endpoint)
        self._loaded: dict[str, SageMakerModel] = {}
        self._turn = trio.Lock()

    async def ping(self, request: HttpRequest) -> HttpReply:
        """200 when the server lives, or is ready."""
        return await (self._control.live if self._ping_mode == "live" else self._control.ready)(request)

    async def invocations(self, request: HttpRequest) -> HttpReply | StreamReply:
        """Inference by the one model. Raises TpyError."""
        if not self._model:
            raise InvalidArgument(
                "/invocations has no model: set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME or --sagemaker-default-model"
            )
        if self._form == "infer":
            return await self._infer(request, self._model)
        self._endpoint.authorize("inference", request, self._model)
        answer = self._generate.generate if self._form == "generate" else self._generate.generate_stream
        return await answer(request, model=self._model)

    async def _infer(self, request: HttpRequest, model: str) -> HttpReply:
        reply = await infer_with_type(self._endpoint, request, model, type_prefix=_TYPE_PREFIX, protocol="sagemaker")
        if reply.status == 200 or reply.status in _ACCESS:
            return reply
        text = b"".join(reply.parts).decode(errors="replace")
        return msgspec.structs.replace(reply, status=_INSUFFICIENT_STORAGE if is_out_of_memory(text) else 400)

    # Multi-model endpoints

    async def list_models(self, request: HttpRequest) -> HttpReply:
        """The models that SageMaker has loaded and that are ready."""
        ready = {entry.name for entry in await self._endpoint.services.repository.index(ready_only=True)}
        models = [_document(name, model) for name, model in sorted(self._loaded.items()) if model.target in ready]
        return json_reply(orjson.dumps({"models": models}))

    async def get_model(self, request: HttpRequest, *, name: str) -> HttpReply:
        """One of them."""
        model = self._loaded.get(name)
        self._endpoint.authorize("model-repository", request, None if model is None else model.target)
        return HttpReply(status=404) if model is None else json_reply(orjson.dumps(_document(name, model)))

    async def invoke(self, request: HttpRequest, *, name: str) -> HttpReply:
        """Inference by one of them."""
        self._endpoint.policy.require("inference", request.fields)  # before its absence tells which are loaded
        model = self._loaded.get(name)
        return HttpReply(status=404) if model is None else await self._infer(request, model.target)

    async def load(self, request: HttpRequest) -> HttpReply:
        """Load a model from where SageMaker has put it. Raises TpyError."""
        registration = self._registration()
        if len(request.body) > limits.SAGEMAKER_LOAD_BYTES_MAX:
            raise InvalidArgument(
                f"a load call has at most {limits.SAGEMAKER_LOAD_BYTES_MAX} bytes, this one has {len(request.body)}"
            )
        try:
            body = _decode_load_body(request.body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"expected the members 'model_name' and 'url': {error}") from None
        target = _target(request, body.model_name)
        _log.info("Loading SageMaker TargetModel: %(target)s", {"target": target})
        async with self._turn:
            if body.model_name in self._loaded:
                raise AlreadyExists(f"model '{body.model_name}' is loaded already")
            place = await run_in_thread(find_model, body.url, limiter=self._endpoint.threads)
            repository = str(place.repository)
            await registration.register(repository, {place.folder: target})
            try:
                await self._endpoint.services.repository.load(LoadRequest(model_name=target))
            except BaseException:
                registration.unregister(repository)
                raise
            self._loaded[body.model_name] = SageMakerModel(target, repository)
        return HttpReply()

    async def unload(self, request: HttpRequest, *, name: str) -> HttpReply:
        """Unload a model, with the parts of an ensemble, and answer when that is done. Raises TpyError."""
        self._endpoint.authorize("model-repository", request, changes=True)  # of all models: its parts have other names
        registration = self._registration()
        async with self._turn:
            model = self._loaded.get(name)
            if model is None:
                return HttpReply(status=404)
            repository = self._endpoint.services.repository
            _log.info("Unloading SageMaker TargetModel: %(target)s", {"target": model.target})
            await repository.unload(model.target, unload_dependents=True)
            with trio.move_on_after(limits.SAGEMAKER_UNLOAD_S_MAX):
                while any(  # noqa: ASYNC110 - no event tells of the end of an unload
                    entry.name == model.target and entry.state in (ModelState.READY, ModelState.UNLOADING)
                    for entry in await repository.index()
                ):
                    await trio.sleep(limits.SAGEMAKER_UNLOAD_PAUSE_S)
            registration.unregister(model.repository)
            del self._loaded[name]
        return HttpReply()

    def _registration(self) -> RegistrationService:
        found = self._endpoint.services.registration
        if found is None:
            raise Unsupported("repositories cannot be registered here")
        return found


def _target(request: HttpRequest, name: str) -> str:
    """The name by which a model is served: that of its archive, else the hash of it that SageMaker calls it by."""
    target = request.fields.get(_TARGET, b"").decode("latin-1")
    if "/" in target or not (target or name):
        raise NotFound(f"'{target}' cannot be the name of a model")
    return target or name


def _document(name: str, model: SageMakerModel) -> dict[str, str]:
    return {"modelName": name, "modelUrl": model.repository}
