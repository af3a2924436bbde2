"""Recordings of requests: what one is to hold, and how it goes."""

from __future__ import annotations

import enum

import msgspec

from tpy.limits import RECORDING_BYTES_DEFAULT, RECORDING_REQUESTS_DEFAULT, RECORDING_SECONDS_DEFAULT


class Contents(enum.Enum):
    """The part of tensors that a recording holds: their elements, a SHA-256 hash of them, or only name, datatype and shape."""

    FULL = "full"
    HASH = "hash"
    NONE = "none"


class RecordingState(enum.Enum):
    """The recording of a server."""

    OFF = "off"
    """No recording since the server started."""
    RECORDING = "recording"
    STOPPED = "stopped"


class RecordingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One recording: of the models that fit a pattern (*, ?, [abc]) one request, or sequence, in `sample`; until the file has
    `bytes_max` bytes or `requests_max` requests, or `seconds_max` seconds have passed."""

    models: tuple[str, ...] = ("*",)
    sample: int = 1
    bytes_max: int = RECORDING_BYTES_DEFAULT
    requests_max: int = RECORDING_REQUESTS_DEFAULT
    seconds_max: int = RECORDING_SECONDS_DEFAULT
    inputs: Contents = Contents.FULL
    outputs: Contents = Contents.FULL


class RecordedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A recording in the directory for them. `modified_ms` is wall-clock time, in milliseconds since 1970."""

    name: str
    byte_size: int
    modified_ms: int


class RecordingStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The present recording, or the last one. `directory` "": this server records nothing. `requests` and `bytes_written` are in
    the file, `dropped` did not fit into memory or were too large, `unfinished` were under way at its end. `reason` is why it has
    stopped. `files` are the newest recordings in the directory, the newest first."""

    state: RecordingState = RecordingState.OFF
    directory: str = ""
    file: str = ""
    options: RecordingOptions | None = None
    requests: int = 0
    bytes_written: int = 0
    dropped: int = 0
    unfinished: int = 0
    seconds: float = 0.0
    reason: str = ""
    files: tuple[RecordedFile, ...] = ()
