"""ServedCopy: a loaded copy of a version, as a request holds it. Implements `tpy.services.ResolvedModel`."""

from __future__ import annotations

from itertools import count

import msgspec

from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.config_forms import ConfigForms
from tpy.messages import InferenceRequest, ModelDescription
from tpy.services import ResponseSink
from tpy.units import NS_PER_US
from tpy_data.engine.requests.handle import EngineHandle
from tpy_data.engine.requests.model_engine import ModelEngine
from tpy_data.engine.requests.observed_request import submit_observed

_numbers = count(1)


def next_copy_number() -> int:
    """A number that no other copy has."""
    return next(_numbers)


class ServedCopy:
    """One for each engine that is switched in, with the description that its requests are decoded by. `nesting` says how many
    ensembles deep it is, 0 for any other model. `enforces_timeouts`: the timeout of a request is its deadline."""

    __slots__ = ("_clock", "copy", "description", "engine", "forms", "hold", "nesting", "release", "submit_part", "version")

    def __init__(
        self,
        engine: ModelEngine,
        version: int,
        config: ModelConfig,
        description: ModelDescription,
        clock: Clock,
        *,
        enforces_timeouts: bool,
        nesting: int = 0,
    ) -> None:
        self.copy = next_copy_number()
        self.version = version
        self.forms = ConfigForms(config)
        self.description = description
        self.engine = engine
        self.nesting = nesting
        self.hold = engine.drain.hold
        self.release = engine.drain.release
        self.submit_part = self._submit_in_time if enforces_timeouts else engine.submit
        """As `submit`, for a request that is observed already, by another copy's `submit`."""
        self._clock = clock

    @property
    def config(self) -> ModelConfig:
        """The configuration that it has now."""
        return self.forms.config

    def submit(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        if request.record is None:
            return self.submit_part(request, sink)
        return submit_observed(request, sink, self.submit_part, self._clock)

    def _submit_in_time(self, request: InferenceRequest, sink: ResponseSink, /) -> EngineHandle:
        """Submit the request with its timeout as its deadline: the earlier one where it has both."""
        if request.timeout_us > 0:
            timeout_at_ns = self._clock.now_ns() + request.timeout_us * NS_PER_US
            if request.deadline_ns is None or timeout_at_ns < request.deadline_ns:
                request = msgspec.structs.replace(request, deadline_ns=timeout_at_ns)
        return self.engine.submit(request, sink)
