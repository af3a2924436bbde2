"""From the methods of a service, as proto/ describes them, to the transport's handlers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any

import trio
from google.protobuf.message import DecodeError, Message

from tpy import limits
from tpy._proto import POOL, request_class
from tpy.errors import InvalidArgument, TpyError, Unsupported
from tpy.frontends.access import roles_for
from tpy.frontends.grpc import rollouts
from tpy.frontends.grpc.calls import CallParts, fail_call, unexpected_error
from tpy.frontends.grpc.codec.fields import FieldBudget, TooManyFields, count_nested_fields, unparsable
from tpy.frontends.grpc.transport import CallContext, StreamCall, StreamHandler, UnaryCall, UnaryHandler
from tpy.frontends.threads import run_in_thread

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

_Method = Callable[[Any], Awaitable["Message | Encoded"]]
_StreamingMethod = Callable[[Any], AsyncIterator[Message]]


class Encoded:
    """The bytes of a response, for a method to return in its place: made in a thread, or kept."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


def serialised(response: Message) -> bytes:
    """The bytes of a response; maps are in the order of their keys."""
    content: bytes = response.SerializeToString(deterministic=True)
    return content


def service_handlers(
    name: str,
    service: object,
    parts: CallParts,
    apis: Mapping[str, str],
    large: Collection[str] = (),
    changing: Collection[str] = (),
) -> dict[str, UnaryHandler | StreamHandler]:
    """A handler for every method of the service `name` that `service` has: `ServerLive` is its `server_live`. A method takes the
    request, or an iterator over them, and returns the response, or is an async generator of them. `apis` says to which restricted
    protocol a method (`/package.Service/Method`) belongs; a method that is not in it is never restricted. `large` are the methods
    whose requests may be large, `changing` the methods that may change something.

    Unary methods run as tasks in the nursery of `parts`, each cancelled with its call; the others in the task of their call.
    """
    handlers: dict[str, UnaryHandler | StreamHandler] = {}
    for described in POOL.FindServiceByName(name).methods:
        method = getattr(service, re.sub(r"\B(?=[A-Z])", "_", described.name).lower(), None)
        if method is None:
            continue
        path = f"/{name}/{described.name}"
        reader = _RequestReader(path, parts.threads, large=path in large)
        api = apis.get(path, "")
        if described.server_streaming:
            stream = _StreamMethod(method, reader, parts, api, many=described.client_streaming)
            handlers[path] = StreamHandler(stream.handle)
        else:
            unary = _UnaryMethod(method, reader, parts, api, changes=path in changing)
            handlers[path] = UnaryHandler(unary.handle, in_task=True)
    return handlers


class _RequestReader:
    """Reads the requests of one method. Their fields are counted before Google's library parses them."""

    def __init__(self, path: str, threads: trio.CapacityLimiter, *, large: bool) -> None:
        self._method = path.rpartition("/")[2]
        self._request_type = request_class(path)
        self._threads = threads
        self._bytes_max = None if large else limits.GRPC_CONTROL_BYTES_MAX
        self._fields_max = limits.GRPC_LOAD_FIELDS_MAX if large else limits.GRPC_CONTROL_FIELDS_MAX

    async def read(self, message: memoryview) -> Message:
        """The request in `message`. Raises Internal, as Triton, for malformed bytes, and InvalidArgument for more than such a
        request may have."""
        if self._bytes_max is not None and len(message) > self._bytes_max:
            raise InvalidArgument(f"a {self._method} request of {len(message)} bytes, at most {self._bytes_max} are accepted")
        if len(message) > limits.GRPC_INLINE_CONTROL_BYTES_MAX:
            return await run_in_thread(self._read, message, limiter=self._threads)
        return self._read(message)

    def _read(self, message: memoryview) -> Message:
        try:
            count_nested_fields(message, self._request_type.DESCRIPTOR, FieldBudget(self._fields_max))
        except TooManyFields:
            raise InvalidArgument(
                f"a {self._method} request with more than {self._fields_max} fields, at most as many are accepted"
            ) from None
        try:
            return self._request_type.FromString(bytes(message))
        except DecodeError:
            raise unparsable() from None


class _UnaryMethod:
    """One unary method."""

    def __init__(self, method: _Method, reader: _RequestReader, parts: CallParts, api: str, *, changes: bool) -> None:
        self._method = method
        self._reader = reader
        self._parts = parts
        self._api = api
        self._changes = changes

    def handle(self, call: UnaryCall, message: memoryview) -> None:
        """See transport's UnaryHandler."""
        scope = trio.CancelScope()
        call.on_cancel(scope.cancel)
        self._parts.nursery.start_soon(self._run, call, message, scope)

    async def _run(self, call: UnaryCall, message: memoryview, scope: trio.CancelScope) -> None:
        with scope:
            try:
                audit = self._parts.services.audit if self._changes else None
                with (
                    nullcontext()
                    if audit is None
                    else audit.action("grpc", call.path, peer=call.peer, certificate=call.certificate()) as action
                ):
                    self._parts.policy.require(self._api, call.metadata)
                    if self._changes:
                        self._parts.policy.require_no_page(call.metadata)
                    caller = self._parts.policy.identify(call)
                    name = "" if caller is None else caller.name
                    if action is not None:
                        action.identified(name, "")
                    if caller is not None and self._api != "health":  # not to read the files of a load call for anybody
                        caller.require_role(roles_for(self._api, changes=call.path.endswith(_CHANGING)))
                    request = await self._reader.read(message)
                    if action is not None and self._api != "shared-memory":  # there the name is a region's
                        action.identified(name, _model_of(request) or "")
                    if caller is not None:
                        _authorize(caller, self._api, call.path, request)
                    del message  # a load may take minutes: do not keep its message that long
                    if action is not None and getattr(request, "settings", True):
                        await action.begin()
                    elif action is not None:  # it asks for settings, and changes none
                        action.forget()
                    answering = self._method(request)
                    del request
                    response = await answering
                    call.reply([response.content if isinstance(response, Encoded) else serialised(response)])
            except Exception as error:
                _fail(call, error)


class _Requests:
    """An iterator over the requests of a call. They end with the client's, or when the server stops."""

    def __init__(self, call: StreamCall, reader: _RequestReader, stop: trio.Event) -> None:
        self._call = call
        self._reader = reader
        self._stop = stop

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        message: memoryview | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_stopped, nursery.cancel_scope)
            message = await self._call.receive_message()
            nursery.cancel_scope.cancel()
        if message is None:
            raise StopAsyncIteration
        return await self._reader.read(message)

    async def _cancel_when_stopped(self, waiting: trio.CancelScope) -> None:
        await self._stop.wait()
        waiting.cancel()


class _StreamMethod:
    """One method with several responses; with several requests, if `many`."""

    def __init__(self, method: _StreamingMethod, reader: _RequestReader, parts: CallParts, api: str, *, many: bool) -> None:
        self._method = method
        self._reader = reader
        self._parts = parts
        self._api = api
        self._many = many

    async def handle(self, call: StreamCall) -> None:
        """See transport's StreamHandler. Closes the generator of the responses, also when the call ends early."""
        try:
            self._parts.policy.require(self._api, call.metadata)
            caller = self._parts.policy.identify(call)
            if caller is not None:
                caller.require_role(roles_for(self._api, changes=False))
            asked = _Requests(call, self._reader, self._parts.stop) if self._many else await self._only_request(call, caller)
            async with aclosing(self._method(asked)) as responses:  # type: ignore[type-var]  # the methods are generators
                async for response in responses:
                    await call.send_message([serialised(response)])
        except Exception as error:
            _fail(call, error)

    async def _only_request(self, call: StreamCall, caller: Caller | None) -> Message:
        message = await call.receive_message()
        if message is None:
            raise Unsupported("the call has no request message, expected one")
        request = await self._reader.read(message)
        if caller is not None:
            _authorize(caller, self._api, call.path, request)
        return request


def _authorize(caller: Caller, api: str, path: str, request: Message) -> None:
    """Raise PermissionDenied or Unauthenticated unless the caller may have this request served."""
    if api == "health":
        service = str(getattr(request, "service", ""))
        # The server itself is the service without a name; to know of anything else, a model perhaps, needs a role.
        model = service.partition("/")[0] or str(getattr(request, "name", "")) or None
    else:
        model = _model_of(request)
    changes = path.endswith(_CHANGING) or bool(getattr(request, "settings", None))
    if "unload_dependents" in getattr(request, "parameters", {}):
        model = None  # they have other names
    caller.authorize(api, model, changes=changes)


def _model_of(request: Message) -> str | None:
    """The model that a request names, or the region; None for none."""
    return str(getattr(request, "model_name", "") or getattr(request, "name", "")) or None


_CHANGING = ("/RepositoryModelLoad", "/RepositoryModelUnload", *rollouts.CHANGING)


def _fail(call: CallContext, error: Exception) -> None:
    """End a call with `error`, which is being handled."""
    if isinstance(error, TpyError):
        fail_call(call, error)
    else:
        fail_call(call, unexpected_error(call.path))
