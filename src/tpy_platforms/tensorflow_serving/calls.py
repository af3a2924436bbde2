"""The methods of the gRPC port. Each call has a task, which waits for its model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import trio
from grpclib.const import Status

from tpy import limits
from tpy.errors import ErrorCode, InvalidArgument, TpyError
from tpy.frontends.access import INFER
from tpy.frontends.grpc.calls import (
    INFERENCE,
    CallParts,
    count_refusal,
    fail_call,
    fail_inference,
    open_record,
    unexpected_error,
)
from tpy.frontends.grpc.codec.fields import (
    TooManyFields,
    length_delimited,
    varint,
)
from tpy.frontends.grpc.transport import UnaryCall, UnaryHandler
from tpy.frontends.http.generate import answer_of
from tpy.frontends.load_report import load_fields
from tpy.frontends.threads import forget_trace, run_in_thread
from tpy.limits.tensorflow_serving import INLINE_OUTPUT_ELEMENTS_MAX
from tpy.messages import DataType, InferenceRequest, RequestRecord, Tensor, content_bytes
from tpy.messages.inference import NO_PARAMETERS
from tpy.services import ResolvedModel, held
from tpy_platforms.tensorflow_serving.examples import classes_of, examples_tensor, values_of
from tpy_platforms.tensorflow_serving.models import (
    CLASSIFY,
    PROTOCOL,
    REGRESS,
    FailedPrecondition,
    ModelSpec,
    ServingSignature,
    resolve,
    signature_of,
    tensor_of,
)
from tpy_platforms.tensorflow_serving.protos import pb, tf
from tpy_platforms.tensorflow_serving.reloading import reload_models
from tpy_platforms.tensorflow_serving.requests import (
    parsed,
    parsed_reload,
    read_examples,
    read_many_examples,
    read_predict,
    read_spec,
    read_tasks,
    spec_of,
    whole_spec,
)
from tpy_platforms.tensorflow_serving.status import statuses
from tpy_platforms.tensorflow_serving.tensors import (
    NUMBERS,
    ManyFilled,
    Pieces,
    read_tensor,
    write_map_entry,
    write_tensor,
)

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

PREDICTION_SERVICE: Final = "tensorflow.serving.PredictionService"
MODEL_SERVICE: Final = "tensorflow.serving.ModelService"

_SIGNATURES: Final = "signature_def"
_NOTHING: Final = memoryview(b"")


class _Running:
    """A call with its sender, the records of its request, one for each task, whether a model has it, and which. `message` is let
    go of when it has been read: its tensors alone keep its bytes."""

    def __init__(self, call: UnaryCall, message: memoryview) -> None:
        self.call = call
        self.message = message
        self.size = len(message)
        self.caller: Caller | None = None
        self.record: RequestRecord | None = None
        self.earlier_records: list[RequestRecord] = []
        self.submitted = False
        self.model: tuple[str, int | None] = ("", None)

    def finish(self, now_ns: int, status: str = "", error: str = "", *, response_bytes: int = 0) -> None:
        """End the records. The tasks before the last one were answered; the bytes of the answer are in the first record."""
        for record in self.earlier_records:
            record.finish(now_ns, response_bytes=response_bytes)
            response_bytes = 0
        if self.record is not None:
            self.record.finish(now_ns, status, error, response_bytes=response_bytes)


_Method = Callable[[_Running], Awaitable[Pieces]]


class ServingCalls:
    """The methods of both services."""

    def __init__(self, parts: CallParts) -> None:
        self._parts = parts
        self._reloading = trio.Lock()

    def handlers(self) -> dict[str, UnaryHandler]:
        """The handlers by path."""
        inference: Mapping[str, _Method] = {
            f"/{PREDICTION_SERVICE}/Predict": self._predict,
            f"/{PREDICTION_SERVICE}/Classify": self._classify,
            f"/{PREDICTION_SERVICE}/Regress": self._regress,
            f"/{PREDICTION_SERVICE}/MultiInference": self._multi_inference,
        }
        others: Mapping[str, tuple[str, _Method]] = {
            f"/{PREDICTION_SERVICE}/GetModelMetadata": ("metadata", self._metadata),
            f"/{MODEL_SERVICE}/GetModelStatus": ("health", self._status),
            f"/{MODEL_SERVICE}/HandleReloadConfigRequest": ("model-repository", self._reload),
        }
        methods = {path: (INFERENCE, method) for path, method in inference.items()} | dict(others)
        return {
            path: UnaryHandler(_Starter(self._parts, api, method).handle, in_task=True) for path, (api, method) in methods.items()
        }

    async def _predict(self, running: _Running) -> Pieces:
        asked = read_predict(running.message)
        spec = self._begin(running, asked.spec)
        model = resolve(self._parts.services.inference, spec)
        signature = signature_of(self._parts.services.inference, model.description)
        signature.require(spec.signature)
        for name in asked.outputs:
            signature.require_output(name)
        with held(model):
            inputs = await self._inputs(asked.inputs, signature, running.size)
        wanted = asked.outputs
        running.message = _NOTHING
        del asked
        outputs = await self._infer(running, spec, model, signature, inputs, wanted)
        if _is_large(outputs):
            return await run_in_thread(_predict_response, outputs, signature, model, limiter=self._parts.threads)
        return _predict_response(outputs, signature, model)

    async def _inputs(self, inputs: Mapping[str, memoryview], signature: ServingSignature, size: int) -> list[Tensor]:
        if size <= limits.GRPC_INLINE_BYTES_MAX:
            try:
                return _tensors(inputs, signature, inline=True)
            except ManyFilled:
                pass
        return await run_in_thread(lambda: _tensors(inputs, signature, inline=False), limiter=self._parts.threads)

    async def _classify(self, running: _Running) -> Pieces:
        spec, examples = await self._one_task(running)
        result, found = await self._task(running, spec, CLASSIFY, examples)
        return [pb.ClassificationResponse(result=result, model_spec=found).SerializeToString()]

    async def _regress(self, running: _Running) -> Pieces:
        spec, examples = await self._one_task(running)
        result, found = await self._task(running, spec, REGRESS, examples)
        return [pb.RegressionResponse(result=result, model_spec=found).SerializeToString()]

    async def _multi_inference(self, running: _Running) -> Pieces:
        parts, examples = await self._examples(running.message)
        running.message = _NOTHING
        if sum(map(len, parts)) > limits.GRPC_INLINE_CONTROL_BYTES_MAX:
            tasks = await run_in_thread(read_tasks, parts, limiter=self._parts.threads)
        else:
            tasks = read_tasks(parts)
        del parts
        response = pb.MultiInferenceResponse()
        for task in tasks:
            spec = self._begin(running, task.model_spec.SerializeToString())
            if task.method_name not in (CLASSIFY, REGRESS):
                raise InvalidArgument(f"Unsupported signature method_name: expected {CLASSIFY} or {REGRESS}")
            result, found = await self._task(running, spec, task.method_name, examples)
            one = response.results.add(model_spec=found)
            (one.classification_result if task.method_name == CLASSIFY else one.regression_result).CopyFrom(result)
        return [response.SerializeToString()]

    async def _one_task(self, running: _Running) -> tuple[ModelSpec, list[bytes]]:
        """The model and the examples of a request for classification or regression."""
        spec_parts, examples = await self._examples(running.message)
        spec = self._begin(running, whole_spec(spec_parts))
        running.message = _NOTHING
        return spec, examples

    async def _examples(self, message: memoryview) -> tuple[list[memoryview], list[bytes]]:
        """The occurrences of the first field, the model spec or the tasks, and the examples. What has many fields is read in a
        thread."""
        if len(message) <= limits.GRPC_INLINE_BYTES_MAX:
            try:
                return read_examples(message, limits.GRPC_INLINE_FIELDS_MAX, limits.GRPC_INLINE_FIELDS_MAX)
            except TooManyFields:
                pass
        return await run_in_thread(read_many_examples, message, limiter=self._parts.threads)

    async def _task(self, running: _Running, spec: ModelSpec, method: str, examples: Sequence[bytes]) -> tuple[Any, Any]:
        """The result of a classification or regression, and the model that it is of."""
        model = resolve(self._parts.services.inference, spec)
        signature = signature_of(self._parts.services.inference, model.description)
        signature.require(spec.signature)
        tensor = examples_tensor(examples, signature, method)
        outputs = await self._infer(running, spec, model, signature, [tensor], ())
        make = _classification if method == CLASSIFY else _regression
        if _is_large(outputs):
            result = await run_in_thread(make, outputs, len(examples), limiter=self._parts.threads)
        else:
            result = make(outputs, len(examples))
        return result, _spec_of(signature, model)

    def _begin(self, running: _Running, spec_bytes: bytes) -> ModelSpec:
        """The model that a request for inference is for. Raises PermissionDenied and Unauthenticated."""
        spec = read_spec(spec_bytes)
        size = running.size
        if running.record is not None:  # the next task of several
            running.earlier_records.append(running.record)
            running.record = None
            size = 0
        running.record = open_record(self._parts, running.call, PROTOCOL, size, spec.name)
        if running.caller is not None:
            running.caller.require(INFER, spec.name)
        return spec

    async def _infer(
        self,
        running: _Running,
        spec: ModelSpec,
        model: ResolvedModel,
        signature: ServingSignature,
        inputs: Sequence[Tensor],
        wanted: Sequence[str],
    ) -> list[Tensor]:
        now_ns = self._parts.clock.now_ns()
        forwarded = self._parts.policy.forwarded(running.call.metadata)
        request = InferenceRequest(
            model_name=spec.name,
            model_version=model.description.version if spec.label else spec.version,
            inputs=tuple(inputs),
            requested_outputs=tuple(dict.fromkeys(wanted)),
            parameters=dict(forwarded) if forwarded else NO_PARAMETERS,
            received_ns=now_ns,
            deadline_ns=running.call.deadline_ns,
            record=running.record,
        )
        running.submitted = True
        running.model = signature.model, model.description.version
        return signature.outputs_of(await answer_of(running.caller, model, request, now_ns))

    async def _metadata(self, running: _Running) -> Pieces:
        asked = parsed(pb.GetModelMetadataRequest, running.message)
        spec = spec_of(asked.model_spec)
        _authorize(running, "metadata", spec.name)
        if not asked.metadata_field:
            raise InvalidArgument("GetModelMetadataRequest must specify at least one metadata_field")
        for name in asked.metadata_field:
            if name != _SIGNATURES:
                raise InvalidArgument(f"Metadata field {name[:100]} is not supported, expected {_SIGNATURES}")
        model = resolve(self._parts.services.inference, spec)
        signature = signature_of(self._parts.services.inference, model.description)
        response = pb.GetModelMetadataResponse(model_spec=_spec_of(signature, model, signature_name=""))
        response.metadata[_SIGNATURES].Pack(_signatures(signature))
        return [response.SerializeToString(deterministic=True)]

    async def _status(self, running: _Running) -> Pieces:
        spec = spec_of(parsed(pb.GetModelStatusRequest, running.message).model_spec)
        _authorize(running, "health", spec.name)
        found = await statuses(self._parts.services, spec)
        states = [
            pb.ModelVersionStatus(
                version=each.version, state=each.state, status={"error_code": each.code, "error_message": each.message}
            )
            for each in found
        ]
        return [pb.GetModelStatusResponse(model_version_status=states).SerializeToString()]

    async def _reload(self, running: _Running) -> Pieces:
        """A change that fails is the status of the call, as in TensorFlow Serving: a response has OK."""
        parts, call = self._parts, running.call
        audit = parts.services.audit
        with (
            nullcontext()
            if audit is None
            else audit.action(PROTOCOL, call.path, peer=call.peer, certificate=call.certificate()) as action
        ):
            parts.policy.require_no_page(call.metadata)
            if action is not None:
                action.identified("" if running.caller is None else running.caller.name, "")
            if running.caller is not None:
                running.caller.authorize("model-repository", None, changes=True)
            asked = await run_in_thread(parsed_reload, running.message, limiter=parts.threads)
            if action is not None:
                await action.begin()
            async with self._reloading:
                await reload_models(parts.services, asked.config)
        return [pb.ReloadConfigResponse(status=pb.StatusProto()).SerializeToString()]


class _Starter:
    """Runs a method in a task for each call."""

    def __init__(self, parts: CallParts, api: str, method: _Method) -> None:
        self._parts = parts
        self._api = api
        self._method = method

    def handle(self, call: UnaryCall, message: memoryview) -> None:
        """See transport's UnaryHandler."""
        scope = trio.CancelScope()
        call.on_cancel(scope.cancel)
        self._parts.nursery.start_soon(self._run, _Running(call, message), scope)

    async def _run(self, running: _Running, scope: trio.CancelScope) -> None:
        parts, call = self._parts, running.call
        with scope:
            try:
                parts.policy.require(self._api, call.metadata)
                running.caller = parts.policy.identify(call)
                pieces = await self._method(running)
                load = await load_fields(parts.services, call.load_format, *running.model) if call.load_format else ()
                call.reply(pieces, load)
                running.finish(parts.clock.now_ns(), response_bytes=sum(map(len, pieces)))
            except TpyError as error:
                self._fail(running, error)
            except Exception:
                self._fail(running, unexpected_error(call.path))
        if scope.cancelled_caught:
            running.finish(parts.clock.now_ns(), ErrorCode.CANCELLED.value)

    def _fail(self, running: _Running, error: TpyError) -> None:
        parts, call = self._parts, running.call
        now_ns = parts.clock.now_ns()
        if self._api == INFERENCE:
            count_refusal(parts, error, submitted=running.submitted)
            if running.record is None:
                running.record = open_record(parts, call, PROTOCOL, running.size, "")
        if isinstance(error, FailedPrecondition):
            call.fail(Status.FAILED_PRECONDITION, error.message)
        elif self._api == INFERENCE:
            fail_inference(call, error, now_ns)
        else:
            fail_call(call, error)
        running.finish(now_ns, error.code.value, error.message)
        forget_trace(error)


def _tensors(inputs: Mapping[str, memoryview], signature: ServingSignature, *, inline: bool) -> list[Tensor]:
    tensors: list[Tensor] = []
    for name, data in inputs.items():
        argument = signature.argument(name)
        datatype, array = read_tensor(data, name, inline=inline, require_shape=argument.require_shape)
        tensors.append(tensor_of(argument, datatype, array))
    return tensors


def _authorize(running: _Running, api: str, model: str) -> None:
    if running.caller is not None:
        running.caller.authorize(api, model, changes=False)


def _spec_of(signature: ServingSignature, model: ResolvedModel, *, signature_name: str | None = None) -> Any:
    name = signature.name if signature_name is None else signature_name
    return pb.ModelSpec(name=signature.model, version={"value": model.description.version}, signature_name=name)


def _predict_response(outputs: Sequence[Tensor], signature: ServingSignature, model: ResolvedModel) -> Pieces:
    pieces: Pieces = []
    for tensor in outputs:
        pieces += write_map_entry(1, tensor.name, write_tensor(tensor))
    spec = _spec_of(signature, model).SerializeToString()
    return [*pieces, bytes((length_delimited(2),)) + varint(len(spec)) + spec]


def _classification(outputs: Sequence[Tensor], count: int) -> Any:
    rows = classes_of(outputs, count)
    return pb.ClassificationResult(
        classifications=[{"classes": [{"label": label, "score": score} for label, score in row]} for row in rows]
    )


def _regression(outputs: Sequence[Tensor], count: int) -> Any:
    return pb.RegressionResult(regressions=[{"value": value} for value in values_of(outputs, count)])


def _signatures(signature: ServingSignature) -> Any:
    def infos(arguments: Mapping[str, Any]) -> Any:
        return {
            name: tf.TensorInfo(
                name=name, dtype=NUMBERS[each.datatype], tensor_shape={"dim": [{"size": size} for size in each.shape]}
            )
            for name, each in arguments.items()
        }

    described = tf.SignatureDef(inputs=infos(signature.inputs), outputs=infos(signature.outputs), method_name=signature.method)
    return pb.SignatureDefMap(signature_def={signature.name: described})


def _is_large(outputs: Sequence[Tensor]) -> bool:
    """Returns True if writing these outputs could hold up the loop."""
    return sum(output.array.size for output in outputs) > INLINE_OUTPUT_ELEMENTS_MAX or any(
        output.datatype is DataType.BYTES and content_bytes(output.array) > limits.GRPC_INLINE_STRING_BYTES_MAX
        for output in outputs
    )
