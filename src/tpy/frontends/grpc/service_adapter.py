"""Serves the service bases that betterproto2 generates: from their `__mapping__()` to the transport's handlers.

The bases were made for grpclib. What they ask of a stream is little, so ours gives them that and leaves grpclib's server out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any

import betterproto2
import trio
from betterproto2.grpclib import ServiceBase
from google.protobuf.message import DecodeError
from grpclib import GRPCError
from grpclib.const import Cardinality, Handler

from tpy import limits
from tpy._proto import request_class
from tpy.errors import InvalidArgument, InvariantViolation, TpyError, Unsupported
from tpy.frontends.access import Caller, roles_for
from tpy.frontends.grpc.calls import CallParts, fail_call, unexpected_error
from tpy.frontends.grpc.codec.fields import FieldBudget, TooManyFields, count_nested_fields, unparsable
from tpy.frontends.grpc.conversion import converted
from tpy.frontends.grpc.transport import CallContext, StreamCall, StreamHandler, UnaryCall, UnaryHandler
from tpy.frontends.threads import run_in_thread


class Encoded:
    """The bytes of a response, for a method to return in its place: made in a thread, or kept."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content


class StreamingService(ServiceBase):
    """A base for services that answer with several messages: closes what produces them, also when the call ends early."""

    async def _call_rpc_handler_server_stream(
        self, handler: Callable[[Any], AsyncIterator[betterproto2.Message]], stream: Any, request: Any
    ) -> None:
        async with aclosing(handler(request)) as responses:  # type: ignore[type-var]  # generated methods are generators
            async for response in responses:
                await stream.send_message(response)


def service_handlers(
    service: ServiceBase,
    parts: CallParts,
    apis: Mapping[str, str],
    large: Collection[str] = (),
    changing: Collection[str] = (),
) -> dict[str, UnaryHandler | StreamHandler]:
    """A handler for every method of `service`. `apis` says to which restricted protocol a method (`/package.Service/Method`)
    belongs; a method that is not in it is never restricted. `large` are the methods whose requests may be large,
    `changing` those that may change something.

    Unary methods run as tasks in the nursery of `parts`, each cancelled with its call; the others in the task of their call.
    """
    mapping: Mapping[str, Handler] = service.__mapping__()  # type: ignore[attr-defined]  # every generated base has it
    handlers: dict[str, UnaryHandler | StreamHandler] = {}
    for path, method in mapping.items():
        reader = _RequestReader(path, method.request_type, parts.threads, large=path in large)
        if method.cardinality is Cardinality.UNARY_UNARY:
            handlers[path] = UnaryHandler(
                _UnaryMethod(method, reader, parts, apis.get(path, ""), changes=path in changing).handle, in_task=True
            )
        else:
            handlers[path] = StreamHandler(_StreamMethod(method, reader, parts, apis.get(path, "")).handle)
    return handlers


class _RequestReader:
    """Reads the requests of one method. Their fields are counted before Google's library parses them."""

    def __init__(
        self, path: str, request_type: type[betterproto2.Message], threads: trio.CapacityLimiter, *, large: bool
    ) -> None:
        self._method = path.rpartition("/")[2]
        self._request_type = request_type
        self._parsed_type = request_class(path)
        self._threads = threads
        self._bytes_max = None if large else limits.GRPC_CONTROL_BYTES_MAX
        self._fields_max = limits.GRPC_LOAD_FIELDS_MAX if large else limits.GRPC_CONTROL_FIELDS_MAX

    async def read(self, message: memoryview) -> betterproto2.Message:
        """The request in `message`. Raises Internal, as Triton, for bytes that are none, and InvalidArgument for more than such a
        request may have."""
        if self._bytes_max is not None and len(message) > self._bytes_max:
            raise InvalidArgument(f"a {self._method} request of {len(message)} bytes, at most {self._bytes_max} are accepted")
        if len(message) > limits.GRPC_INLINE_CONTROL_BYTES_MAX:
            return await run_in_thread(self._read, message, limiter=self._threads)
        return self._read(message)

    def _read(self, message: memoryview) -> betterproto2.Message:
        try:
            count_nested_fields(message, self._parsed_type.DESCRIPTOR, FieldBudget(self._fields_max))
        except TooManyFields:
            raise InvalidArgument(
                f"a {self._method} request with more than {self._fields_max} fields, at most as many are accepted"
            ) from None
        try:
            parsed = self._parsed_type.FromString(bytes(message))
        except DecodeError:
            raise unparsable() from None
        return converted(parsed, self._request_type)


class _UnaryStream:
    """The stream of a generated unary method: one message each way."""

    def __init__(self, request: betterproto2.Message) -> None:
        self._request = request
        self.response: betterproto2.Message | Encoded | None = None

    async def recv_message(self) -> betterproto2.Message:
        return self._request

    async def send_message(self, message: betterproto2.Message | Encoded) -> None:
        self.response = message


class _UnaryMethod:
    """One unary method."""

    def __init__(self, method: Handler, reader: _RequestReader, parts: CallParts, api: str, *, changes: bool) -> None:
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
                self._parts.policy.require(self._api, call.metadata)
                if self._changes:
                    self._parts.policy.require_no_page(call.metadata)
                caller = self._parts.policy.identify(call.metadata)
                if caller is not None and self._api != "health":  # not to read the files of a load call for anybody
                    caller.require_role(roles_for(self._api, changes=call.path.endswith(_CHANGING)))
                request = await self._reader.read(message)
                if caller is not None:
                    _authorize(caller, self._api, call.path, request)
                del message  # a load may take minutes: do not keep its message that long
                stream = _UnaryStream(request)
                del request
                await self._method.func(stream)
                call.reply([_serialised(stream.response)])
            except Exception as error:
                _fail(call, error)


def _serialised(response: betterproto2.Message | Encoded | None) -> bytes:
    if response is None:
        raise InvariantViolation("a unary method has returned without a response")
    return response.content if isinstance(response, Encoded) else bytes(response)


class _CallStream:
    """The stream of a generated streaming method. The requests end with the client's, or when the server stops."""

    def __init__(
        self, call: StreamCall, reader: _RequestReader, stop: trio.Event, caller: Caller | None = None, api: str = ""
    ) -> None:
        self._caller = caller
        self._api = api
        self._call = call
        self._reader = reader
        self._stop = stop

    async def recv_message(self) -> betterproto2.Message:
        """The one request of a method that takes one."""
        message = await self._call.receive_message()
        if message is None:
            raise Unsupported("the call has no request message, expected one")
        request = await self._reader.read(message)
        if self._caller is not None:
            _authorize(self._caller, self._api, self._call.path, request)
        return request

    async def send_message(self, message: betterproto2.Message) -> None:
        await self._call.send_message([bytes(message)])

    def __aiter__(self) -> AsyncIterator[betterproto2.Message]:
        return self

    async def __anext__(self) -> betterproto2.Message:
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
    """One method with several requests or responses."""

    def __init__(self, method: Handler, reader: _RequestReader, parts: CallParts, api: str) -> None:
        self._method = method
        self._reader = reader
        self._parts = parts
        self._api = api

    async def handle(self, call: StreamCall) -> None:
        """See transport's StreamHandler."""
        try:
            self._parts.policy.require(self._api, call.metadata)
            caller = self._parts.policy.identify(call.metadata)
            if caller is not None:
                caller.require_role(roles_for(self._api, changes=False))
            await self._method.func(_CallStream(call, self._reader, self._parts.stop, caller, self._api))
        except Exception as error:
            _fail(call, error)


def _authorize(caller: Caller, api: str, path: str, request: betterproto2.Message) -> None:
    """Raise PermissionDenied or Unauthenticated unless the caller may have this request served."""
    if api == "health":
        service = str(getattr(request, "service", ""))
        # The server itself is the service without a name; to know of anything else, a model perhaps, needs a role.
        model = service.partition("/")[0] or str(getattr(request, "name", "")) or None
    else:
        model = str(getattr(request, "model_name", "") or getattr(request, "name", "")) or None
    changes = path.endswith(_CHANGING) or bool(getattr(request, "settings", None))
    if "unload_dependents" in getattr(request, "parameters", {}):
        model = None  # they have other names
    caller.authorize(api, model, changes=changes)


_CHANGING = ("/RepositoryModelLoad", "/RepositoryModelUnload")


def _fail(call: CallContext, error: Exception) -> None:
    """End a call with `error`, which is being handled."""
    if isinstance(error, TpyError):
        fail_call(call, error)
    elif isinstance(error, GRPCError):  # raised by the bases for methods that a service leaves out
        call.fail(error.status, error.message or "")
    else:
        fail_call(call, unexpected_error(call.path))
