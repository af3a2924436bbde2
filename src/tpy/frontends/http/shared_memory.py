"""The routes of shared memory with clients."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final

import orjson

from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.document import NON_STRING, NON_UNSIGNED, is_heavy, is_unsigned, load_document
from tpy.frontends.http.codec.pieces import LongString
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, json_reply
from tpy.limits import HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX
from tpy.messages import CudaRegistration, RegionFacts, RegionKind, Registration, SystemRegistration
from tpy.regions import registered
from tpy.services import SharedMemoryService

_CUDA_HANDLE_BYTES: Final = 64
_DONE: Final = HttpReply()


class RegionsApi:
    """The routes for regions of one kind. Each method takes the request and the region of its URL."""

    def __init__(self, service: SharedMemoryService, kind: RegionKind) -> None:
        self._service = service
        self._kind = kind
        self._read: Callable[[str, Body], Registration] = _system if kind is RegionKind.SYSTEM else _cuda

    async def status(self, request: HttpRequest, *, region: str = "") -> HttpReply:
        found = registered(self._service.regions, self._kind, region)
        return json_reply(orjson.dumps([_shown(facts) for facts in found]))

    async def register(self, request: HttpRequest, *, region: str = "") -> HttpReply:
        self._service.require_enabled()
        if not region:
            raise InvalidArgument(f"'region name' is necessary to register {self._kind.value} shared memory region")
        await self._service.register(self._read(region, request.body))
        return _DONE

    async def unregister(self, request: HttpRequest, *, region: str = "") -> HttpReply:
        await self._service.unregister(self._kind, region)
        return _DONE


def _shown(facts: RegionFacts) -> dict[str, object]:
    if facts.kind is RegionKind.CUDA:
        return {"name": facts.name, "device_id": facts.device_id, "byte_size": facts.byte_size}
    return {"name": facts.name, "key": facts.key, "offset": facts.offset, "byte_size": facts.byte_size}


def _system(region: str, body: Body) -> SystemRegistration:
    """The registration in `body`. Raises InvalidArgument."""
    document = _object_of(body)
    if "key" not in document:
        raise InvalidArgument("Shared memory register request has no 'key' field")
    key = _string(document["key"])
    offset = _unsigned(document.get("offset", 0))
    if "byte_size" not in document:
        raise InvalidArgument("Shared memory register request has no 'byte_size' field")
    return SystemRegistration(name=region, key=key, offset=offset, byte_size=_unsigned(document["byte_size"]))


def _cuda(region: str, body: Body) -> CudaRegistration:
    """The same for memory of a GPU."""
    document = _object_of(body)
    if "raw_handle" not in document:
        raise InvalidArgument("Shared memory register request has no 'raw_handle' field")
    handle = document["raw_handle"]
    encoded = _string(_member(handle if type(handle) is dict else {}, "b64"))
    byte_size = _unsigned(_member(document, "byte_size"))
    device = _unsigned(_member(document, "device_id"))
    try:
        raw = base64.b64decode(encoded)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _CUDA_HANDLE_BYTES:
        raise InvalidArgument("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
    return CudaRegistration(name=region, raw_handle=raw, device_id=device, byte_size=byte_size)


def _object_of(body: Body) -> dict[str, object]:
    """The members of the document; empty if it is not an object."""
    if is_heavy(body):
        raise InvalidArgument(
            f"the request has {len(body)} bytes, a region is registered with at most {HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX}"
        )
    document = load_document(body)
    return document if type(document) is dict else {}


def _member(document: dict[str, object], member: str) -> object:
    if member not in document:
        raise InvalidArgument(f"attempt to access non-existing object member '{member}'")
    return document[member]


def _string(value: object) -> str:
    if type(value) is LongString:
        return value.decode()
    if type(value) is not str:
        raise InvalidArgument(NON_STRING)
    return value


def _unsigned(value: object) -> int:
    if type(value) is not int or not is_unsigned(value):
        raise InvalidArgument(NON_UNSIGNED)
    return value
