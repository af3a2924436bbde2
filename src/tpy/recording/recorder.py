"""Recorder: the observer that records requests and answers, and the recording as callers see it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import translate
from pathlib import Path

import trio

from tpy import __version__
from tpy.clock import Clock
from tpy.credentials import without_credentials
from tpy.echo import echo
from tpy.errors import AlreadyExists, ErrorCode, Internal, InvalidArgument
from tpy.limits import (
    RECORDING_BYTES_MAX,
    RECORDING_CLOSE_S_MAX,
    RECORDING_ENTRY_BYTES_MAX,
    RECORDING_FILES_LOOKED_AT_MAX,
    RECORDING_FILES_SHOWN_MAX,
    RECORDING_HELD_BYTES_MAX,
    RECORDING_HELD_REQUESTS_MAX,
    RECORDING_PATTERNS_MAX,
    RECORDING_REQUESTS_MAX,
    RECORDING_SECONDS_MAX,
    RECORDING_SEQUENCES_MAX,
)
from tpy.messages import (
    Contents,
    InferenceRequest,
    InferenceResponse,
    RecordedFile,
    RecordingOptions,
    RecordingState,
    RecordingStatus,
    RequestRecord,
    SequencePosition,
)
from tpy.observers import RequestObserver
from tpy.recording.core.entries import Beginning
from tpy.recording.recording_file import RecordingFile
from tpy.recording.taking import FinishedRequest, HeldResponse, HeldTensor, byte_size, held
from tpy.units import NS_PER_MS, NS_PER_S

_SAMPLE_MAX = 2**31 - 1


def require_sound(options: RecordingOptions) -> None:
    """Raise InvalidArgument for a recording that cannot be made."""
    if not options.models or "" in options.models:
        raise InvalidArgument("a recording needs models: names, or patterns such as *")
    if len(options.models) > RECORDING_PATTERNS_MAX:
        raise InvalidArgument(f"a recording has at most {RECORDING_PATTERNS_MAX} patterns of models, got {len(options.models)}")
    for name, value, maximum in (
        ("sample", options.sample, _SAMPLE_MAX),
        ("max_bytes", options.bytes_max, RECORDING_BYTES_MAX),
        ("max_requests", options.requests_max, RECORDING_REQUESTS_MAX),
        ("max_seconds", options.seconds_max, RECORDING_SECONDS_MAX),
    ):
        if not 1 <= value <= maximum:
            raise InvalidArgument(f"{name}: expected 1 to {maximum}, got {value}")


_log = logging.getLogger(__name__)

_SUFFIX = ".tpyrec"
_STREAM_BYTES = 8
_STREAMS = "grpc-stream"
_STOPPED = "it was stopped"
_SERVER_STOPS = "the server stops"


class HeldRequest:
    """A request under way. `held_bytes` is the memory of its copies."""

    __slots__ = ("arrived_ns", "dropped", "held_bytes", "inputs", "recording", "request", "responses")

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.dropped = False
        self.request: InferenceRequest | None = None
        self.arrived_ns = 0
        self.inputs: Sequence[HeldTensor] = ()
        self.responses: list[HeldResponse] = []
        self.held_bytes = 0


class Recording:
    """One recording: which requests are in it, and the memory that they take until they are in the file."""

    def __init__(self, file: RecordingFile, options: RecordingOptions, *, utc_offset_ns: int) -> None:
        self.file = file
        self.options = options
        self.utc_offset_ns = utc_offset_ns
        self._match = re.compile("|".join(map(translate, options.models))).match
        self._salt = secrets.token_bytes(16)
        """So that a file does not tell who the clients were."""
        self._count = 0
        self._sequences: set[tuple[str, int | str]] = set()
        self._held_bytes = 0
        self.dropped = 0
        self.under_way = 0

    def fits(self, model: str) -> bool:
        """Returns True for a model that is recorded."""
        return self._match(model) is not None

    def chooses(self, model: str, sequence: SequencePosition | None) -> bool:
        """Returns True for a request in the sample, which takes sequences as a whole."""
        if sequence is None:
            return self._next()
        key = model, sequence.correlation_id
        if sequence.start:
            self._sequences.discard(key)
            if not self._next():
                return False
            if len(self._sequences) >= RECORDING_SEQUENCES_MAX:
                self.dropped += 1
                return False
            if not sequence.end:
                self._sequences.add(key)
            return True
        if key not in self._sequences:
            return False
        if sequence.end:
            self._sequences.remove(key)
        return True

    def reserve(self, request: HeldRequest, size: int) -> bool:
        """Returns True when there is room for `size` bytes of copies; otherwise the request is left out."""
        in_memory = self._held_bytes - self.file.given_back + size
        if request.held_bytes + size > RECORDING_ENTRY_BYTES_MAX or in_memory > RECORDING_HELD_BYTES_MAX:
            self.drop(request)
            return False
        request.held_bytes += size
        self._held_bytes += size
        return True

    def drop(self, request: HeldRequest) -> None:
        """Leave the request out."""
        if not request.dropped:
            request.dropped = True
            self.dropped += 1
            self.under_way -= 1
            self.forget(request)

    def forget(self, request: HeldRequest) -> None:
        """Give back the memory of a request that is not written."""
        self._held_bytes -= request.held_bytes
        request.held_bytes = 0
        request.inputs, request.responses = (), []

    @property
    def has_room(self) -> bool:
        """Returns True while not too many requests are under way or wait."""
        return self.under_way + self.file.waiting_count < RECORDING_HELD_REQUESTS_MAX

    def stream_of(self, record: RequestRecord) -> str:
        """A name for the connection, which says nothing about it."""
        if record.protocol != _STREAMS:
            return ""
        return hashlib.blake2b(record.peer.encode(), digest_size=_STREAM_BYTES, key=self._salt).hexdigest()

    def _next(self) -> bool:
        self._count += 1
        if self._count < self.options.sample:
            return False
        self._count = 0
        return True


class Recorder(RequestObserver):
    """Makes one recording at a time, in a new file in `directory`. Parameters with the names
    `credentials` (in lower case) are left out, as are the usual names of credentials. For one Trio thread."""

    active = False
    """True while a recording is made, and until the first request after one that ended by itself."""

    def __init__(self, directory: Path, clock: Clock, server: str, credentials: frozenset[str]) -> None:
        self._credentials = credentials
        self._directory = directory
        self._clock = clock
        self._server = server
        self._recording: Recording | None = None
        self._changes = trio.Lock()
        self._number = 0

    # The recording, as tpy.services.RecordingService has it

    async def change(self, options: RecordingOptions | None) -> RecordingStatus:
        """Start a recording; with None stop the current one. Raises AlreadyExists during a recording, InvalidArgument for invalid
        bounds, Internal when the file cannot be written."""
        async with self._changes:
            if options is not None:
                await self._start(options)
            elif self._recording is not None:
                file = self._recording.file
                self._end(self._recording, _STOPPED)
                await trio.to_thread.run_sync(file.join, RECORDING_CLOSE_S_MAX)
            return await self.status()

    async def status(self) -> RecordingStatus:
        """The recording as it is now."""
        directory = str(self._directory)
        files = await trio.to_thread.run_sync(_files_in, directory)
        recording = self._recording
        if recording is None:
            return RecordingStatus(directory=directory, files=files)
        file = recording.file
        is_open = file.open
        until_ns = file.ended_ns or self._clock.now_ns()
        return RecordingStatus(
            state=RecordingState.RECORDING if is_open else RecordingState.STOPPED,
            directory=directory,
            file=str(file.path),
            options=recording.options,
            requests=file.requests,
            bytes_written=file.size,
            dropped=recording.dropped + file.left_out,
            unfinished=recording.under_way + (0 if is_open else file.waiting_count),
            seconds=(until_ns - file.began_ns) / NS_PER_S,
            reason=file.reason,
            files=files,
        )

    def close(self) -> None:
        """End the recording, for a server that stops; waits for the disk, but not for ever."""
        if self._recording is not None:
            self._end(self._recording, _SERVER_STOPS)
            self._recording.file.join(RECORDING_CLOSE_S_MAX)

    async def _start(self, options: RecordingOptions) -> None:
        require_sound(options)
        if self._recording is not None and self._recording.file.open:
            raise AlreadyExists(f"a recording is being made: '{self._recording.file.path}'; stop it first")
        now_ns, wall_ns = self._clock.now_ns(), self._clock.wall_ms() * NS_PER_MS
        beginning = Beginning(
            server=self._server,
            server_version=__version__,
            began_ns=wall_ns,
            models=options.models,
            sample=options.sample,
            inputs=options.inputs,
            outputs=options.outputs,
        )
        self._number += 1
        moment = datetime.fromtimestamp(wall_ns // NS_PER_S, UTC).strftime("%Y%m%dT%H%M%SZ")
        path = self._directory / f"recording-{moment}-{os.getpid()}-{self._number}{_SUFFIX}"
        try:
            file = await trio.to_thread.run_sync(RecordingFile, path, beginning, options, self._clock)
        except OSError as error:
            raise Internal(f"cannot write '{path}': {error.strerror or error}") from None
        self._recording = Recording(file, options, utc_offset_ns=wall_ns - now_ns)
        self.active = True
        _log.info("recording requests of %(models)s to '%(file)s'", {"models": ", ".join(options.models), "file": path})

    def _end(self, recording: Recording, reason: str) -> None:
        self.active = False
        recording.file.note_missing(dropped=recording.dropped, unfinished=recording.under_way)
        recording.file.stop(reason)

    # Requests

    def sample(self, protocol: str, model: str, headers: Mapping[str, str]) -> HeldRequest | None:
        """Requests of clients to the models of the recording. Calls of models belong to requests that are recorded."""
        recording = self._recording
        if recording is None or not recording.file.open:
            self.active = False
            return None
        if protocol == "call" or not recording.fits(model):
            return None
        return HeldRequest(recording)

    def admitted(self, record: RequestRecord, request: InferenceRequest) -> None:
        """Keep the request, if it is in the sample."""
        taken: HeldRequest | None = record.attachments.get(self)
        if taken is None:
            return
        recording = taken.recording
        if not recording.chooses(request.model_name, request.sequence):
            del record.attachments[self]
            return
        if not recording.has_room:
            recording.dropped += 1
            del record.attachments[self]
            return
        recording.under_way += 1
        contents = recording.options.inputs
        if contents is not Contents.NONE and not recording.reserve(taken, sum(map(byte_size, request.inputs))):
            return
        taken.arrived_ns = record.begun_ns or record.received_ns or record.submitted_ns
        taken.inputs = [held(tensor, contents) for tensor in request.inputs]
        taken.request = _to_keep(request, self._credentials)

    def responded(self, record: RequestRecord, response: InferenceResponse) -> None:
        """Keep the response. One that only says that there are no more does not count."""
        taken: HeldRequest | None = record.attachments.get(self)
        if taken is None or taken.dropped or (not response.outputs and response.error is None):
            return
        contents = taken.recording.options.outputs
        if contents is not Contents.NONE and not taken.recording.reserve(taken, sum(map(byte_size, response.outputs))):
            return
        tensors = [held(tensor, contents) for tensor in response.outputs]
        kept = InferenceResponse(
            model_name=response.model_name,
            model_version=response.model_version,
            parameters=response.parameters,
            error=response.error,
        )
        taken.responses.append(HeldResponse(self._clock.now_ns() - taken.arrived_ns, tensors, kept))

    def finished(self, record: RequestRecord) -> None:
        """Have it written."""
        taken: HeldRequest | None = record.attachments.pop(self, None)
        if taken is None or taken.dropped or taken.request is None:
            return
        recording = taken.recording
        recording.under_way -= 1
        if not recording.file.open:
            recording.forget(taken)
            return
        recording.file.note_missing(dropped=recording.dropped, unfinished=recording.under_way)
        recording.file.put(
            FinishedRequest(
                request=taken.request,
                inputs=taken.inputs,
                responses=taken.responses,
                arrived_ns=taken.arrived_ns + recording.utc_offset_ns,
                latency_ns=max(0, record.finished_ns - taken.arrived_ns),
                protocol=record.protocol,
                stream=recording.stream_of(record),
                served_version=record.version,
                status=record.status or ErrorCode.UNKNOWN.value,
                error=record.error,
                held_bytes=taken.held_bytes,
            )
        )


def _to_keep(request: InferenceRequest, credentials: frozenset[str]) -> InferenceRequest:
    """The request without tensors, which belong to others, and without credentials that were forwarded as parameters."""
    return InferenceRequest(
        model_name=request.model_name,
        model_version=request.model_version,
        id=request.id,
        requested_outputs=request.requested_outputs,
        parameters=without_credentials(request.parameters, credentials),
        sequence=request.sequence,
        priority=request.priority,
        timeout_us=request.timeout_us,
    )


@contextlib.contextmanager
def recording(directory: str, clock: Clock, server: str, credentials: frozenset[str]) -> Iterator[Recorder]:
    """The recorder for the length of the block; its end ends a recording. Raises InvalidArgument for a directory that
    cannot be written."""
    recorder = Recorder(_writable(directory), clock, server, credentials)
    try:
        yield recorder
    finally:
        recorder.close()


def _files_in(directory: str) -> tuple[RecordedFile, ...]:
    """The newest recordings there. None when the directory cannot be read."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in itertools.islice(entries, RECORDING_FILES_LOOKED_AT_MAX):
            if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # removed meanwhile
                    status = entry.stat(follow_symlinks=False)
                    modified_ms = status.st_mtime_ns // NS_PER_MS
                    found.append(RecordedFile(name=echo(entry.name), byte_size=status.st_size, modified_ms=modified_ms))
    found.sort(key=lambda file: (-file.modified_ms, file.name))
    return tuple(found[:RECORDING_FILES_SHOWN_MAX])


def _writable(directory: str) -> Path:
    path = Path(directory).absolute()
    if not path.is_dir():
        raise InvalidArgument(f"--recording-directory: there is no folder '{path}'")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidArgument(f"--recording-directory: cannot write '{path}': Permission denied")
    return path
