"""Responder: makes the responses of one model version and delivers them; and the errors of requests that are refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tpy.echo import request_prefix
from tpy.errors import Cancelled, TpyError, Unavailable
from tpy.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor
from tpy.messages.inference import NO_PARAMETERS
from tpy.services import ResponseSink
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.schedulers.core import Outcome

_log = logging.getLogger(__name__)
_NOT_DELIVERED = "a response could not be delivered"


class Responder:
    """Makes and delivers the responses of one model version, whatever engine it has."""

    __slots__ = ("_name", "_version")

    def __init__(self, name: str, version: int) -> None:
        self._name = name
        self._version = version

    def respond(
        self,
        sink: ResponseSink,
        request_id: str,
        outputs: tuple[Tensor, ...] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        *,
        error: TpyError | None = None,
        final: bool = True,
    ) -> None:
        """Deliver one response."""
        response = InferenceResponse(
            model_name=self._name,
            model_version=self._version,
            id=request_id,
            outputs=outputs,
            parameters=parameters,
            error=error,
            final=final,
        )
        try:
            sink.deliver(response)
        except Exception:
            _log.exception(_NOT_DELIVERED)


def deliver(sink: ResponseSink, response: InferenceResponse) -> None:
    """Deliver a response as it is. A sink must not raise; if one does, that is its own request's loss and not the model's."""
    try:
        sink.deliver(response)
    except Exception:
        _log.exception(_NOT_DELIVERED)


class _Discard:
    """Takes responses and drops them."""

    def deliver(self, response: InferenceResponse) -> None:
        pass


DISCARD = _Discard()
"""The sink of a request that was cancelled when its answer was already on the way."""


def error_of(outcome: Outcome) -> TpyError:
    """The error of a request that got no result for this reason."""
    return (Cancelled if outcome is Outcome.CANCELLED else Unavailable)(outcome.value)


def refused(refusal: TpyError, request: InferenceRequest, statistics: VersionStatistics) -> TpyError:
    """The error to raise for a request that was not admitted, which is counted here."""
    statistics.refused_admission(refusal)
    return Unavailable(f"{request_prefix(request.id)}{refusal}") if isinstance(refusal, Unavailable) else refusal
