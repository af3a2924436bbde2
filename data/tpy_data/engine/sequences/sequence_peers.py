"""SequencePeers: which version of a model holds a sequence. Asked when the version that a request would go to does not.

A sequence stays with the version that it began in, also when a newer one was switched in meanwhile or the model is unloaded: its
requests reach that version until the sequence is over. Only a START looks at what is served now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec
import trio

from tpy.clock import Clock
from tpy.echo import request_prefix
from tpy.errors import TpyError
from tpy.ids import ModelId
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription
from tpy.services import ResponseSink
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.observed_request import submit_observed


class LiveSequences(Protocol):
    """The live sequences of one version."""

    def __len__(self) -> int: ...

    def __contains__(self, correlation_id: int | str) -> bool: ...


class HoldingCopy(Protocol):
    """The loaded copy of a version that holds sequences."""

    @property
    def version(self) -> int: ...

    @property
    def description(self) -> ModelDescription: ...

    def submit_part(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`, for requests that are observed already."""
        ...


class SequenceHolder(NamedTuple):
    """A version of a sequence model. `let_go` has it wait no longer for the end of its sequences."""

    copy: HoldingCopy
    sequences: LiveSequences
    let_go: Callable[[], None]

    def submit_described(self, request: InferenceRequest, sink: ResponseSink) -> EngineHandle:
        """Submit a request that was decoded for another copy: its responses say whose they are."""
        return self.copy.submit_part(request, _DescribedSink(sink, self.copy.description))


class SequencePeers:
    """All current engines of sequence models, whether switched in or draining."""

    def __init__(self) -> None:
        self._holders: dict[ModelId, list[SequenceHolder]] = {}
        self._over: trio.Event | None = None
        self.closed = False
        """No sequence begins any more: the server is stopping."""

    @contextmanager
    def joined(self, model: ModelId, holder: SequenceHolder) -> Iterator[None]:
        """Ask this one too, for the length of the block."""
        holders = self._holders.setdefault(model, [])
        holders.append(holder)
        try:
            yield
        finally:
            holders.remove(holder)
            if not holders:
                del self._holders[model]
            self.sequence_ended()

    def other(self, model: ModelId, request: InferenceRequest) -> SequenceHolder | None:
        """The holder of the request's sequence; None: nothing holds it, or the request begins it."""
        return _holder(self._holders.get(model, ()), request)

    def by_name(self, request: InferenceRequest) -> SequenceHolder | None:
        """The same for the model of this name, which may not be served any more."""
        if request.sequence is None:
            return None
        found = [
            holder
            for model, holders in self._holders.items()
            if model.name == request.model_name and (holder := _holder(holders, request)) is not None
        ]
        return found[0] if len(found) == 1 else None

    def described(self, model_name: str, version: int | None) -> ModelDescription | None:
        """The description for requests of sequences that live in this model, when it is not served any more: the newest
        version's."""
        found = [
            holder.copy.description
            for model, holders in self._holders.items()
            if model.name == model_name
            for holder in holders
            if len(holder.sequences) and version in (None, holder.copy.version)
        ]
        return found[-1] if found else None

    def lives_in(self, model: ModelId) -> bool:
        """True when a sequence of this model lives."""
        return any(len(holder.sequences) for holder in self._holders.get(model, ()))

    def let_go(self) -> None:
        """Nobody sends requests any more."""
        for holders in self._holders.values():
            for holder in holders:
                holder.let_go()

    def sequence_ended(self) -> None:
        """A sequence of some model is over: look whether it was the last, if somebody waits for that."""
        if self._over is not None and not self.live():
            self._over.set()

    async def wait_over(self) -> None:
        """Until no sequence lives."""
        while self.live():
            self._over = trio.Event()
            await self._over.wait()

    def live(self) -> bool:
        """True when a sequence lives."""
        return any(len(holder.sequences) for holders in self._holders.values() for holder in holders)


def _holder(holders: Sequence[SequenceHolder], request: InferenceRequest) -> SequenceHolder | None:
    position, version = request.sequence, request.model_version
    if position is None or position.start:
        return None
    for holder in reversed(holders):  # the newest first: an id may live twice, when it was begun anew in a newer version
        if version in (None, holder.copy.version) and position.correlation_id in holder.sequences:
            return holder
    return None


class _DescribedSink:
    """Passes responses on, with the description of the copy that gave them."""

    __slots__ = ("_description", "_sink")

    def __init__(self, sink: ResponseSink, description: ModelDescription) -> None:
        self._sink = sink
        self._description = description

    def deliver(self, response: InferenceResponse) -> None:
        """See ResponseSink."""
        self._sink.deliver(msgspec.structs.replace(response, described_by=self._description))


class LiveSequencesOnly:
    """Stands in for a copy where none takes requests, as a `tpy.services.ResolvedModel`: requests of live sequences go on where
    their sequences are, all others are refused, with `text`."""

    __slots__ = ("_clock", "_error", "_names_request", "_peers", "_text", "_wait_s", "copy", "description")

    def __init__(
        self,
        peers: SequencePeers,
        description: ModelDescription,
        error: type[TpyError],
        text: str,
        clock: Clock,
        *,
        names_request: bool = False,
        wait_s: int | None = None,
    ) -> None:
        self.copy = 0  # the number of no copy
        self._wait_s = wait_s
        self.description = description
        self._peers = peers
        self._error = error
        self._text = text
        self._clock = clock
        self._names_request = names_request

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        return submit_observed(request, sink, self._submit, self._clock)

    def hold(self) -> None:
        """Nothing to do: a copy waits for its sequences anyway."""

    def release(self) -> None:
        """Nothing to do."""

    def _submit(self, request: InferenceRequest, sink: ResponseSink) -> EngineHandle:
        holder = self._peers.by_name(request)
        if holder is None:
            prefix = request_prefix(request.id) if self._names_request else ""
            error = self._error(f"{prefix}{self._text}")
            error.wait_s = self._wait_s
            raise error
        return holder.submit_described(request, sink)
