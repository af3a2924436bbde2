"""Calls of hosted backends to the server, through the worker's connection."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpy.errors import Internal, NotFound, TpyError
from tpy.messages import DataType, InferenceRequest, InferenceResponse, LoadRequest, SequencePosition, Tensor
from tpy_data.backends.python.worker.hosting.calls import HostedCalls
from tpy_data.backends.python.worker.pb_utils.failures import ErrorCode, TritonError, TritonModelException
from tpy_data.backends.python.worker.pb_utils.pending_call import PendingCall
from tpy_data.backends.python.worker.pb_utils.response import InferenceResponse as WorkersResponse
from tpy_data.backends.python.worker.pb_utils.response import received_response
from tpy_data.backends.python.worker.pb_utils.tensor import wrap


class Port:
    """A `CallPort` that answers with two responses: a tensor, and an error."""

    phase = "execute"

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.orders: list[tuple[object, ...]] = []

    def infer(self, request: Any, *, streams: bool) -> PendingCall:
        self.requests.append(request)
        pending = PendingCall(lambda pending: None)
        pending.put(received_response([wrap("Y", DataType.INT32.number, np.array([5], np.int32))], None, '{"a":1}'), False)
        pending.put(WorkersResponse(error=TritonError("not there", ErrorCode.NOT_FOUND)), True)
        return pending

    def prepare_waiting_elsewhere(self) -> None:
        self.orders.append(("prepare",))

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self.orders.append((name, config, dict(files)))

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        raise TritonModelException("no")

    def is_model_ready(self, name: str, version: int | None) -> bool:
        return version == 2


class Sink:
    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.over = threading.Event()

    def deliver(self, response: InferenceResponse) -> None:
        self.responses.append(response)
        if response.final:
            self.over.set()

    def refuse(self, error: TpyError) -> None:
        raise AssertionError(error)


def test_responses_arrive_in_order_and_errors_keep_their_code() -> None:
    port, sink = Port(), Sink()
    request = InferenceRequest(
        model_name="m",
        id="i",
        inputs=(Tensor("X", DataType.INT32, np.array([1], np.int32)),),
        sequence=SequencePosition(correlation_id=4, start=True, end=True),
    )
    HostedCalls(port).infer(request, sink, streams=True)
    assert sink.over.wait(20)
    (sent,) = port.requests
    assert (sent.request_id(), sent.correlation_id(), sent.flags()) == ("i", 4, 3)
    first, last = sink.responses
    assert (first.outputs[0].array.tolist(), first.parameters, first.final) == ([5], {"a": 1}, False)
    assert isinstance(last.error, NotFound)


def test_repository_calls_are_answered() -> None:
    port, ready, ends = Port(), list[bool](), list[TpyError | None]()
    server = HostedCalls(port)
    server.load_model(LoadRequest(model_name="m", config_json="{}", files={"1/a": b"x"}), ends.append)
    server.unload_model("m", ends.append, unload_dependents=False)
    server.is_model_ready("m", 2, ready.append)
    assert port.orders == [("m", "{}", {"file:1/a": b"x"})]
    assert [type(end) for end in ends] == [type(None), Internal]
    assert ready == [True]
