"""`tpy record`: has a running server record requests, and watches it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType

import msgspec
import orjson

from tpy_tools.commands.client import Client, ClientError

_PATH = "/v2/recording"
_PAUSE_S = 1.0


class RecordingAnswer(msgspec.Struct, frozen=True):
    """The answer of /v2/recording."""

    state: str
    directory: str
    file: str
    requests: int
    bytes: int
    dropped: int
    unfinished: int
    seconds: float
    reason: str


def line_of(recording: RecordingAnswer) -> str:
    """The recording in a line."""
    if recording.state == "off":
        return "no recording was made" + ("" if recording.directory else "; the server has no --recording-directory")
    text = f"{recording.file}: {recording.requests} requests, {recording.bytes} bytes in {recording.seconds:.1f} s"
    text += f", {recording.dropped} dropped" if recording.dropped else ""
    if recording.state == "recording":
        return f"{text}; recording"
    text += f", {recording.unfinished} unfinished" if recording.unfinished else ""
    return f"{text}; stopped: {recording.reason}"


class Watching:
    """The recording of one server. Raises ClientError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(self) -> RecordingAnswer:
        """The recording now."""
        return _read(self._client.get(_PATH))

    def start(self, options: Mapping[str, object]) -> RecordingAnswer:
        """Start one."""
        return self._change({"action": "start", **options})

    def stop(self) -> RecordingAnswer:
        """Stop it."""
        return self._change({"action": "stop"})

    def wait(self, show: Callable[[str], None]) -> RecordingAnswer:
        """Show how it goes until it has stopped by itself, or Ctrl-C or SIGTERM stops it."""
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            while (recording := self.status()).state == "recording":
                show(line_of(recording))
                time.sleep(_PAUSE_S)
            return recording
        except KeyboardInterrupt:
            return self.stop()

    def _change(self, document: Mapping[str, object]) -> RecordingAnswer:
        return _read(self._client.post(_PATH, orjson.dumps(document)))


def _read(document: object) -> RecordingAnswer:
    try:
        return msgspec.convert(document, RecordingAnswer)
    except msgspec.ValidationError as error:
        raise ClientError(f"the answer of {_PATH} cannot be read: {error}") from error


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
