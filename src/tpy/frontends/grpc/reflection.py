"""gRPC's server reflection: what the port serves, told from the descriptors of proto/."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

from google.protobuf.message import Message
from grpclib.const import Status

from tpy._proto import POOL, messages

pb = messages("reflection.proto")


class ReflectionService:
    """`own_services` are the full names of the services of the port."""

    def __init__(self, own_services: Iterable[str]) -> None:
        self._own_services = sorted(own_services)

    async def server_reflection_info(self, messages: AsyncIterator[Any]) -> AsyncIterator[Message]:
        """See ServerReflection.ServerReflectionInfo. What is not found is an answer, not the end of the call."""
        async for message in messages:
            response = self._answer(message)
            response.valid_host = message.host
            response.original_request.CopyFrom(message)
            yield response

    def _answer(self, message: Any) -> Any:
        asked = message.WhichOneof("message_request")
        try:
            if asked == "list_services":
                services = [pb.ServiceResponse(name=name) for name in self._own_services]
                return pb.ServerReflectionResponse(list_services_response=pb.ListServiceResponse(service=services))
            if asked == "file_by_filename":
                return _files(POOL.FindFileByName(message.file_by_filename))
            if asked == "file_containing_symbol":
                return _files(_file_with(message.file_containing_symbol))
            if asked == "all_extension_numbers_of_type":
                name = POOL.FindMessageTypeByName(message.all_extension_numbers_of_type).full_name
                extensions = pb.ExtensionNumberResponse(base_type_name=name)  # proto3 has no extensions
                return pb.ServerReflectionResponse(all_extension_numbers_response=extensions)
            if asked == "file_containing_extension":
                return _error(Status.NOT_FOUND, "no message of this server has extensions")
        except KeyError as error:
            return _error(Status.NOT_FOUND, str(error.args[0]))
        return _error(Status.INVALID_ARGUMENT, "the request asks for nothing: expected one of its message_request fields")


def _file_with(symbol: str) -> Any:
    """The file that defines `symbol`. The pool knows messages, enums and services; a field or method is found by what has it."""
    try:
        return POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        owner, _, member = symbol.rpartition(".")
        file = POOL.FindFileContainingSymbol(owner)
        if member not in _members(file, owner.removeprefix(f"{file.package}.")):
            raise
        return file


def _members(file: Any, owner: str) -> Collection[str]:
    """Names of the methods or fields of what is called `owner` in `file`."""
    if owner in file.services_by_name:
        return file.services_by_name[owner].methods_by_name  # type: ignore[no-any-return]  # protobuf makes it at run time
    return POOL.FindMessageTypeByName(f"{file.package}.{owner}").fields_by_name  # type: ignore[no-any-return]  # the same


def _files(wanted: Any) -> Any:
    """The file and all that it needs, each once, the wanted one first."""
    found = {wanted.name: wanted}
    waiting = [wanted]
    while waiting:
        for needed in waiting.pop().dependencies:
            if needed.name not in found:
                found[needed.name] = needed
                waiting.append(needed)
    files = [file.serialized_pb for file in found.values()]
    return pb.ServerReflectionResponse(file_descriptor_response=pb.FileDescriptorResponse(file_descriptor_proto=files))


def _error(status: Status, text: str) -> Any:
    return pb.ServerReflectionResponse(error_response=pb.ErrorResponse(error_code=status.value, error_message=text))
