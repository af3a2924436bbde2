"""The route of recordings of requests, an addition of tpy."""

from __future__ import annotations

import msgspec
import orjson

from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.document import is_heavy, load_document
from tpy.frontends.http.message import Body, HttpReply, HttpRequest, json_reply
from tpy.limits import RECORDING_BYTES_DEFAULT, RECORDING_REQUESTS_DEFAULT, RECORDING_SECONDS_DEFAULT
from tpy.messages import Contents, RecordingOptions, RecordingStatus
from tpy.services import RecordingService


class _Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action", tag="start"):
    """The body of a call that starts a recording."""

    models: tuple[str, ...] = ("*",)
    sample: int = 1
    max_bytes: int = RECORDING_BYTES_DEFAULT
    max_requests: int = RECORDING_REQUESTS_DEFAULT
    max_seconds: int = RECORDING_SECONDS_DEFAULT
    inputs: Contents = Contents.FULL
    outputs: Contents = Contents.FULL

    def options(self) -> RecordingOptions:
        """The options of the recording."""
        return RecordingOptions(
            models=self.models,
            sample=self.sample,
            bytes_max=self.max_bytes,
            requests_max=self.max_requests,
            seconds_max=self.max_seconds,
            inputs=self.inputs,
            outputs=self.outputs,
        )


class _Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="action", tag="stop"):
    """The body of a call that stops one."""


class RecordingsApi:
    """The handlers of `/v2/recording`."""

    def __init__(self, service: RecordingService) -> None:
        self._service = service

    async def status(self, request: HttpRequest) -> HttpReply:
        return _shown(await self._service.status())

    async def change(self, request: HttpRequest) -> HttpReply:
        change = _change(request.body)
        return _shown(await self._service.change(change.options() if isinstance(change, _Start) else None))


def _change(body: Body) -> _Start | _Stop:
    """The change in `body`. Raises InvalidArgument."""
    if is_heavy(body):
        raise InvalidArgument("the body of a recording call is small")
    try:
        return msgspec.convert(load_document(body), _Start | _Stop)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"recording: {error}") from None


def _shown(status: RecordingStatus) -> HttpReply:
    document: dict[str, object] = {
        "state": status.state.value,
        "directory": status.directory,
        "file": status.file,
        "requests": status.requests,
        "bytes": status.bytes_written,
        "dropped": status.dropped,
        "unfinished": status.unfinished,
        "seconds": round(status.seconds, 3),
        "reason": status.reason,
        "files": [{"name": file.name, "bytes": file.byte_size, "modified_ms": file.modified_ms} for file in status.files],
    }
    if (options := status.options) is not None:
        document |= {
            "models": options.models,
            "sample": options.sample,
            "max_bytes": options.bytes_max,
            "max_requests": options.requests_max,
            "max_seconds": options.seconds_max,
            "inputs": options.inputs.value,
            "outputs": options.outputs.value,
        }
    return json_reply(orjson.dumps(document))
