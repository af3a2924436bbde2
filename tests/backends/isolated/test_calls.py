"""Calls of hosted backends to the server."""

from __future__ import annotations

from tpy.errors import TpyError, Unsupported
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest
from tpy_data.backends.python.worker.hosting.calls import REFUSAL, NoCalls


class Sink:
    def __init__(self) -> None:
        self.refused: list[TpyError | None] = []

    def deliver(self, response: InferenceResponse) -> None:
        raise AssertionError(response)

    def refuse(self, error: TpyError) -> None:
        self.refused.append(error)


def test_calls_are_refused_with_what_to_do() -> None:
    sink, server, ready = Sink(), NoCalls(), list[bool]()
    server.infer(InferenceRequest(model_name="m"), sink, streams=False).cancel()
    server.load_model(LoadRequest(model_name="m"), sink.refused.append)
    server.unload_model("m", sink.refused.append, unload_dependents=False)
    server.is_model_ready("m", None, ready.append)
    assert ready == [False]
    assert [(type(error), str(error)) for error in sink.refused] == [(Unsupported, REFUSAL)] * 3
    assert "isolation 'thread'" in REFUSAL
