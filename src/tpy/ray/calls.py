"""Models of other applications that a replica's models call by name, and that its ensembles have as steps.

In the caller's server a model of the same name stands for each: its requests are forwarded, on Ray's loop, to a replica of the
other application by Serve's handle, and its instance does not wait for them. What crosses are NumPy's arrays, texts and numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from tpy.backend import ExecutionRequest, ExecutionResult, ResponseSender
from tpy.config import ConfigError, ModelConfig, format_pbtxt, parse_pbtxt
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelInput, ModelOutput, ModelParameter, TransactionPolicy
from tpy.embedded import Response
from tpy.errors import ERROR_OF_CODE, ErrorCode, Internal, InvalidArgument, TpyError, Unavailable
from tpy.limits.ray import RAY_MEMBER_TIMEOUT_S
from tpy.messages import Tensor
from tpy_data.backends.function import FORWARDERS, PARAMETER

T = TypeVar("T")

_FILE = "config.pbtxt"

Answer = Mapping[str, Any]
"""One response on its way between applications: `outputs`, arrays by name, with `parameters`; or `error`, a code's name, with a
`message`."""


def config_of(folder: Path) -> ModelConfig:
    """The configuration in a model's folder, an empty one if the file is missing. Raises InvalidArgument."""
    file = folder / _FILE
    if not file.is_file():
        return ModelConfig()
    try:
        return parse_pbtxt(file.read_text(encoding="utf-8"), path=str(file)).config
    except (ConfigError, OSError, UnicodeError) as error:
        raise InvalidArgument(f"tpy.ray: model '{folder.name}': {error}") from None


def with_called(
    view: Path, repositories: Sequence[str], names: Sequence[str], loop: asyncio.AbstractEventLoop
) -> tuple[str, ...]:
    """The repositories as a server sees them whose requests to the models `names` go to the applications of these names: folders
    below `view`, with links to all other models. `loop` is Ray's. Raises InvalidArgument for a model whose requests cannot be
    forwarded."""
    missing = set(names)
    seen = []
    for number, repository in enumerate(repositories):
        if not Path(repository).is_dir():
            seen.append(repository)
            continue
        folder = view / str(number)
        folder.mkdir()
        for each in Path(repository).iterdir():
            if each.name in names:
                missing.discard(each.name)
                _write_stand_in(folder / each.name, config_of(each), loop)
            else:
                (folder / each.name).symlink_to(each.absolute())
        seen.append(str(folder))
    if missing:
        raise InvalidArgument(f"tpy.ray: calls names the model '{min(missing)}', which is not in {', '.join(repositories)}")
    return tuple(seen)


def _write_stand_in(folder: Path, config: ModelConfig, loop: asyncio.AbstractEventLoop) -> None:
    key = f"ray/{folder.name}"
    stand_in = _stand_in(folder.name, config, key)
    FORWARDERS[key] = CalledModel(stand_in, loop)
    (folder / "1").mkdir(parents=True)
    (folder / _FILE).write_text(format_pbtxt(stand_in), encoding="utf-8")


def _stand_in(name: str, config: ModelConfig, key: str) -> ModelConfig:
    """The configuration of the model that stands for it: the same tensors."""
    if not config.input or not config.output:
        raise InvalidArgument(f"tpy.ray: calls names the model '{name}': its {_FILE} has to say its inputs and outputs")
    if config.sequence_batching is not None:
        raise InvalidArgument(f"tpy.ray: calls names the model '{name}', which has sequences: load it beside")
    return ModelConfig(
        name=name,
        backend="function",
        max_batch_size=config.max_batch_size,
        input=tuple(
            ModelInput(name=each.name, data_type=each.data_type, dims=each.dims, optional=each.optional) for each in config.input
        ),
        output=tuple(ModelOutput(name=each.name, data_type=each.data_type, dims=each.dims) for each in config.output),
        instance_group=(InstanceGroup(count=1, kind=InstanceKind.KIND_CPU),),
        model_transaction_policy=TransactionPolicy(decoupled=True) if config.decoupled else None,
        parameters={PARAMETER: ModelParameter(string_value=key)},
    )


def answer_of(response: Response) -> Answer:
    """A response of the called model."""
    return {"outputs": dict(response), "parameters": dict(response.parameters)}


def refusal_of(error: TpyError) -> Answer:
    """The error that a call ends with."""
    return {"error": error.code.name, "message": error.message}


class CalledModel:
    """A Forwarder to the application that has the name of a model, whose `config` is that of what stands for it."""

    def __init__(self, config: ModelConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.is_decoupled = config.decoupled
        self.loop = loop
        self._name = config.name
        self._types = {output.name: output.data_type for output in config.output}
        self._handle: Any = None

    def forward(self, request: ExecutionRequest, sender: ResponseSender) -> None:
        """See Forwarder."""
        call = _Call(self, request, sender)
        sender.watch(call.taken, call.ended)
        try:
            self.loop.call_soon_threadsafe(call.begin)
        except RuntimeError:
            sender.send(ExecutionResult(error=Unavailable("the replica is stopping")), final=True, wait=False)

    # On Ray's loop

    async def handle(self) -> Any:
        """Serve's handle of the application. Raises RayServeException if there is no such application."""
        if self._handle is None:
            self._handle = await self.require_there()
        return self._handle

    async def require_there(self) -> Any:
        """As `handle`, and asks the controller anew."""
        return await asyncio.to_thread(serve.get_app_handle, self._name)

    def result_of(self, answer: Answer) -> ExecutionResult:
        """The result in an answer. Raises the error that it has instead."""
        if "error" in answer:
            raise ERROR_OF_CODE[ErrorCode[answer["error"]]](answer["message"])
        types = self._types
        outputs = [Tensor(name, types[name], array) for name, array in answer["outputs"].items() if name in types]
        return ExecutionResult(outputs, parameters=answer["parameters"])

    def failure(self, error: Exception) -> TpyError:
        """The error of a call that the application did not answer."""
        if isinstance(error, RayTaskError):
            return Internal(f"model '{self._name}' of the application '{self._name}' failed: {error.cause}")
        if isinstance(error, RayError | RayServeException):
            return Unavailable(f"the application '{self._name}' does not answer: {' '.join(str(error).split())}")
        return Internal(f"the call of the application '{self._name}' failed: {type(error).__name__}: {error}")


class _Call:
    """One request of a CalledModel. `taken` and `ended` are called on the Trio thread; all else runs on Ray's loop."""

    def __init__(self, model: CalledModel, request: ExecutionRequest, sender: ResponseSender) -> None:
        self._model = model
        self._sender = sender
        self._inputs = {name: tensor.array for name, tensor in request.inputs.items()}
        self._options = _options_of(request)
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def taken(self, count: int) -> None:
        """The caller has taken responses."""
        self._soon(self._room.set)

    def ended(self) -> None:
        """Nobody waits for the answer any more."""
        self._soon(self._cancel)

    def _soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and has ended what ran on it
            self._model.loop.call_soon_threadsafe(function)

    def begin(self) -> None:
        """Ask the application."""
        if self._is_over:
            self._send(None, final=True)
        else:
            self._task = self._model.loop.create_task(self._run())

    def _cancel(self) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        last: ExecutionResult | None = ExecutionResult(error=Unavailable("the replica is stopping"))
        try:
            last = await (self._stream() if self._model.is_decoupled else self._only())
        except TpyError as error:
            last = ExecutionResult(error=error.with_traceback(None))
        except Exception as error:
            last = ExecutionResult(error=self._model.failure(error))
        finally:
            self._send(last, final=True)

    def _send(self, result: ExecutionResult | None, *, final: bool) -> None:
        self._sender.send(result, final=final, wait=False)

    async def _only(self) -> ExecutionResult:
        asked = (await self._model.handle()).infer_arrays.remote(self._inputs, self._options)
        try:
            return self._model.result_of(await self._answered(asked))
        except asyncio.CancelledError:
            asked.cancel()
            raise

    async def _stream(self) -> None:
        """Sends all responses. The next one is asked for when there is room for it."""
        handle = (await self._model.handle()).options(stream=True)
        asked = handle.stream_arrays.remote(self._inputs, self._options)
        try:
            while (answer := await self._answered(anext(asked, None))) is not None:
                self._send(self._model.result_of(answer), final=False)
                while self._sender.is_full():
                    self._room.clear()
                    if self._sender.is_full():  # and did not become free before `clear`
                        await self._room.wait()
        except BaseException:
            asked.cancel()
            raise

    async def _answered(self, asked: Awaitable[T]) -> T:
        """Returns what Ray brings. Raises RayServeException when the application is gone; Ray would wait until it is back."""
        task = asyncio.ensure_future(asked)
        try:
            while not (await asyncio.wait((task,), timeout=RAY_MEMBER_TIMEOUT_S))[0]:
                await self._model.require_there()
            return task.result()
        finally:
            task.cancel()


def _options_of(request: ExecutionRequest) -> dict[str, Any]:
    """The options of `Model.infer` for the same request."""
    options: dict[str, Any] = {
        "id": request.id,
        "outputs": tuple(request.requested_outputs),
        "parameters": dict(request.parameters),
        "timeout_us": request.timeout_us,
    }
    if request.sequence is not None:
        options["sequence_id"] = request.sequence.correlation_id
        options["sequence_start"], options["sequence_end"] = request.sequence.start, request.sequence.end
    return options
