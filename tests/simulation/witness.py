"""Witness: an InferenceService in front of the real one. It sees every request go in and every answer come out."""

from __future__ import annotations

from tests.simulation.journal import Journal
from tpy.config import ModelConfig
from tpy.config_forms import ConfigForms
from tpy.messages import InferenceRequest, InferenceResponse
from tpy.services import InferenceService, RequestHandle, ResolvedModel, ResponseSink
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.requests.statistics import VersionStatistics


class _Tally:
    """The outcomes of the requests of one loaded copy of a version."""

    def __init__(self, *, decoupled: bool, ordered: bool) -> None:
        self.decoupled = decoupled
        self.ordered = ordered
        self.accepted = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled = 0
        self.newest_answered = -1


class Observed:
    """One request: its sink and its handle at once."""

    def __init__(self, witness: Witness, request: InferenceRequest, sink: ResponseSink, version: int) -> None:
        self.request = request
        self.version = version
        self.ended = False
        self.cancelled = False
        self.number = 0
        self.tally: _Tally | None = None
        self.handle: RequestHandle | None = None
        self.failed = False
        self._witness = witness
        self._sink = sink
        self._early: list[InferenceResponse] = []

    def deliver(self, response: InferenceResponse) -> None:
        journal = self._witness.journal
        if self.ended or self.cancelled:
            state = "its end" if self.ended else "its cancellation"
            journal.broken(f"request {self.request.id} got a response after {state}")
        if response.id != self.request.id or response.model_name != self.request.model_name:
            journal.broken(f"request {self.request.id} got the response of {response.model_name} {response.id}")
        if response.model_version != self.version and self.request.sequence is None:
            journal.broken(f"request {self.request.id} for version {self.version} was answered by {response.model_version}")
        self.failed = self.failed or response.error is not None
        journal.note("answer", self.request.id, response.final, response.error or "ok")
        if response.final:
            self.ended = True
            self.handle = None
        if self.tally is None:
            self._early.append(response)
        else:
            self._book(self.tally, response)
        self._sink.deliver(response)

    def accepted(self, handle: RequestHandle, tally: _Tally, number: int) -> None:
        if not self.ended:
            self.handle = handle
        self.tally = tally
        self.number = number
        tally.accepted += 1
        for response in self._early:
            self._book(tally, response)
        self._early.clear()

    def _book(self, tally: _Tally, response: InferenceResponse) -> None:
        if not tally.decoupled and not response.final:
            self._witness.journal.broken(f"request {self.request.id} of a model that answers once got more")
        if response.error is None and tally.ordered:
            if self.number < tally.newest_answered:
                self._witness.journal.broken(f"request {self.request.id} was answered out of order")
            tally.newest_answered = self.number
        if response.final:
            tally.failed += self.failed
            tally.succeeded += not self.failed

    def cancel(self) -> None:
        if not self.ended and not self.cancelled:
            self._witness.journal.note("cancel", self.request.id)
            if self.tally is not None:
                self.tally.cancelled += 1
        self.cancelled = self.cancelled or not self.ended
        if self.handle is not None:
            handle, self.handle = self.handle, None
            handle.cancel()

    def pause(self) -> None:
        if self.handle is not None:
            self.handle.pause()

    def resume(self) -> None:
        if self.handle is not None:
            self.handle.resume()


class _Witnessed:
    """A resolved model of which the witness sees the requests, and who holds it."""

    def __init__(self, witness: Witness, model: ResolvedModel, *, ordered: bool) -> None:
        self.copy = model.copy
        self.description = model.description
        self._witness = witness
        self._model = model
        self._ordered = ordered

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> RequestHandle:
        return self._witness.submit(self._model, request, sink, ordered=self._ordered)

    def hold(self) -> None:
        self._witness.held += 1
        self._model.hold()

    def release(self) -> None:
        self._witness.held -= 1
        self._model.release()


class Witness:
    """Books requests by the version that took them; an ensemble has one engine after the other. `check`: what is amiss."""

    def __init__(self, inference: InferenceService, journal: Journal) -> None:
        self.journal = journal
        self._inference = inference
        self._tallies: dict[VersionStatistics, _Tally] = {}
        self._engines: dict[ModelEngine, None] = {}
        self._requests: list[Observed] = []
        self.held = 0

    def resolve(self, model_name: str, version: int | None = None) -> ResolvedModel:
        dynamic = self._inference.config(model_name, version).dynamic_batching
        ordered = dynamic is not None and dynamic.preserve_ordering
        return _Witnessed(self, self._inference.resolve(model_name, version), ordered=ordered)

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        return self._inference.ready_versions(model_name)

    def config(self, model_name: str, version: int | None = None) -> ModelConfig:
        return self._inference.config(model_name, version)

    def config_forms(self, model_name: str, version: int | None = None) -> ConfigForms:
        return self._inference.config_forms(model_name, version)

    def submit(self, model: ResolvedModel, request: InferenceRequest, sink: ResponseSink, *, ordered: bool) -> RequestHandle:
        observed = Observed(self, request, sink, model.description.version)
        try:
            handle = model.submit(request, observed)
        except Exception as refusal:
            self.journal.note("refused", request.id, refusal)
            raise
        engine: ModelEngine = handle.owner  # type: ignore[attr-defined]
        tally = self._tallies.get(engine.statistics)
        self._engines[engine] = None
        if tally is None:
            tally = self._tallies[engine.statistics] = _Tally(decoupled=model.description.decoupled, ordered=ordered)
        self.journal.note("accepted", request.id)
        observed.accepted(handle, tally, len(self._requests))
        self._requests.append(observed)
        return observed

    def check(self) -> None:
        """Every request ended once, and the statistics say what was seen."""
        for observed in self._requests:
            if not observed.ended and not observed.cancelled:
                self.journal.broken(f"request {observed.request.id} was never answered")
        if self.held:
            self.journal.broken(f"a model is held {self.held} times at the end")
        for statistics, tally in self._tallies.items():
            inference = statistics.inference()
            seen = (tally.succeeded, tally.failed + tally.cancelled)
            told = (inference.success.count, inference.fail.count)
            if seen != told:
                self.journal.broken(f"statistics tell {told} (successes, failures) where {seen} were seen")
        for engine in self._engines:
            snapshot = engine.snapshot()
            if snapshot.queued:
                self.journal.broken(f"{snapshot.queued} requests are still queued at the end")
