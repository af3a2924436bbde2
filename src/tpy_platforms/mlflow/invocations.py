"""The handlers of MLflow's scoring protocol. A body with more rows than the model takes at once becomes several requests."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from tpy import __version__
from tpy.errors import InvalidArgument, Refusal, Unsupported
from tpy.frontends.access import submit
from tpy.frontends.http.codec import is_heavy, is_large
from tpy.frontends.http.generate import GenerateResponses
from tpy.frontends.http.infer import InferEndpoint, open_record, parse_version
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, json_reply
from tpy.frontends.threads import run_in_thread
from tpy.limits import HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX, MLFLOW_BATCHES_AT_ONCE_MAX, MLFLOW_BODY_BYTES_MAX
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription, Tensor
from tpy.services import ResolvedModel, held
from tpy_platforms.mlflow.answers import type_reply
from tpy_platforms.mlflow.core.columns import read_csv, read_json
from tpy_platforms.mlflow.core.predictions import encode_predictions
from tpy_platforms.mlflow.core.signature import PARAMETER, MlflowModel, read_model
from tpy_platforms.mlflow.core.tensors import ModelRequests, asked_of

_CSV: Final = "text/csv"
_READERS: Final = {"application/json": read_json, _CSV: read_csv}
_UTF8: Final = ("utf-8", "utf8")


class InvocationsApi:
    """The handlers. `model` is the one at /invocations, "" the only one that is ready."""

    def __init__(self, endpoint: InferEndpoint, *, model: str) -> None:
        self._endpoint = endpoint
        self._model = model

    async def ping(self, request: HttpRequest) -> HttpReply:
        """200 when the model, or without one the server, is ready; otherwise 404 as MLflow's."""
        repository = self._endpoint.services.repository
        ready = await repository.model_ready(self._model) if self._model else repository.server_ready()
        return json_reply(b"\n", status=200 if ready else 404)

    async def version(self, request: HttpRequest) -> HttpReply:
        """The version of this server."""
        return json_reply(__version__.encode())

    async def invocations(self, request: HttpRequest) -> HttpReply:
        """Predictions of the one model. Raises TpyError."""
        model = self._model or await self._only_model()
        self._endpoint.authorize("inference", request, model)
        return await self.invocations_of(request, model=model)

    async def invocations_of(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        """Predictions of a model. Raises TpyError."""
        endpoint = self._endpoint
        if request.fields.get(b"content-encoding", b"identity") not in (b"identity", b""):
            raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
        kind, problem = _content_kind(request.fields.get(b"content-type", b"").decode("latin-1"))
        if problem:
            return type_reply(problem)
        resolved = endpoint.services.inference.resolve(model, parse_version(version))
        description = resolved.description
        if description.decoupled:
            raise Unsupported(f"model '{model}' answers in streams (decoupled), which this protocol does not have")
        config = endpoint.services.inference.config(model, description.version)
        imported = read_model(config.parameter(PARAMETER))
        body, request.body, request.sent_bytes = request.body, b"", len(request.body)
        read = partial(_read, kind, body, description, imported)
        with held(resolved):
            asked = await run_in_thread(read, limiter=endpoint.threads) if _is_heavy(kind, body) else read()
            del body, read
            responses = await self._answers(request, resolved, asked, imported)
        encode = partial(encode_predictions, responses, imported, is_frame=asked.is_frame)
        outputs = [output for response in responses for output in response.outputs]
        return json_reply(await run_in_thread(encode, limiter=endpoint.threads) if is_large(outputs) else encode())

    async def _only_model(self) -> str:
        """The name of the only model that is ready. Raises InvalidArgument."""
        ready = {entry.name for entry in await self._endpoint.services.repository.index(ready_only=True)}
        if len(ready) != 1:
            raise InvalidArgument(
                f"/invocations has no model: {len(ready) or 'none'} of them are ready; start the server with --mlflow-model, or "
                "ask /models/NAME/invocations"
            )
        return ready.pop()

    async def _answers(
        self, request: HttpRequest, resolved: ResolvedModel, asked: ModelRequests, imported: MlflowModel
    ) -> list[InferenceResponse]:
        """The responses to all batches, some of which run at the same time. Raises the error of the first that has one, and the
        refusal of one that was submitted alone."""
        found: list[InferenceResponse] = []
        running: deque[GenerateResponses] = deque()
        room = MLFLOW_BATCHES_AT_ONCE_MAX
        batch: InferenceRequest | None = None
        try:
            while len(found) < len(asked.batches):
                while len(running) < room and (at := len(found) + len(running)) < len(asked.batches):
                    try:
                        batch = batch or self._request(request, resolved, asked.batches[at], asked, imported)
                        running.append(self._begin(request, resolved, batch))
                    except Refusal:
                        if not running:
                            raise
                        # All that the queue or the caller's concurrency has room for. More are not tried again, as each try
                        # counts: as a refused request, and in the rate of a key.
                        room = len(running)
                    else:
                        batch = None
                [response] = await running[0].wait()
                running.popleft()
                if response.error is not None:
                    raise response.error
                found.append(response)
        finally:
            for each in running:
                each.cancel()
        return found

    def _request(
        self,
        request: HttpRequest,
        resolved: ResolvedModel,
        inputs: tuple[Tensor, ...],
        asked: ModelRequests,
        imported: MlflowModel,
    ) -> InferenceRequest:
        """One batch, which may be submitted several times until it is accepted."""
        endpoint, name = self._endpoint, resolved.description.name
        now_ns = endpoint.clock.now_ns()
        record = open_record(endpoint.services.observers, request, "mlflow", name, now_ns)
        if request.record is None:
            request.record = record
        elif record is not None:
            request.further_records += (record,)
        return InferenceRequest(
            model_name=name,
            inputs=inputs,
            requested_outputs=(imported.output,) if imported.output else (),
            parameters=asked.parameters,
            received_ns=now_ns,
            record=record,
        )

    def _begin(self, request: HttpRequest, resolved: ResolvedModel, batch: InferenceRequest) -> GenerateResponses:
        """Submit one batch. Raises what `submit` raises."""
        responses = GenerateResponses(decoupled=False, record=batch.record)
        request.submitted = True
        now_ns = self._endpoint.clock.now_ns()
        responses.begin(lambda sink: submit(request.caller, resolved, batch, sink, now_ns))
        return responses


def _content_kind(text: str) -> tuple[str, str]:
    """The type of a body, and why it is refused, "" if it is not."""
    kind, *parameters = (part.strip() for part in text.split(";"))
    said = dict(part.partition("=")[::2] for part in parameters if part)
    if said.pop("charset", "utf-8").strip('"').lower() not in _UTF8:
        return "", "The scoring server only supports UTF-8"
    if said:
        return "", f"Unrecognized content type parameters: {', '.join(said)}."
    if kind.lower() not in _READERS:
        return "", f"This predictor only supports the following content types: {', '.join(_READERS)}. Got '{text[:100]}'."
    return kind.lower(), ""


def _is_heavy(kind: str, body: Body) -> bool:
    """Returns True if reading the body could hold up the loop. Commas do not count the cells of CSV: it may have one column."""
    return len(body) > HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX if kind == _CSV else is_heavy(body)


def _read(kind: str, body: Body, description: ModelDescription, imported: MlflowModel) -> ModelRequests:
    """The requests of a body. Raises InvalidArgument."""
    if len(body) > MLFLOW_BODY_BYTES_MAX:
        raise InvalidArgument(
            f"a body has at most {MLFLOW_BODY_BYTES_MAX} bytes here, this one has {len(body)}: send fewer rows at a time"
        )
    return asked_of(_READERS[kind](body), description, imported)
