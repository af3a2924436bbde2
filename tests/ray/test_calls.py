"""Calls of other applications' models, with a handle in place of Serve's."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.serve.exceptions import RayServeException

import tpy
from tpy.errors import InvalidArgument, NotFound, TpyError, Unavailable
from tpy.limits import DECOUPLED_RESPONSES_WAITING_MAX, EMBEDDED_RESPONSES_MAX
from tpy.ray import calls
from tpy.ray.calls import answer_of, refusal_of, with_called

Answering = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
ENSEMBLE = """
name: "both" platform: "ensemble" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step {
  model_name: "other" model_version: -1 input_map { key: "X" value: "IN" } output_map { key: "Y" value: "OUT" } } }
"""


class _Response:
    """A call under way, as DeploymentResponse and DeploymentResponseGenerator. Cancelled as theirs: by `cancel`."""

    def __init__(self, handle: Handle, answer: Any) -> None:
        self._handle = handle
        self._answer = answer

    def __await__(self) -> Any:
        return self._answer.__await__()

    async def __anext__(self) -> Any:
        return await anext(self._answer)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def cancel(self) -> None:
        self._handle.cancelled.set()


class Handle:
    """A DeploymentHandle: a method is asked by `.remote(...)`."""

    def __init__(self, answer: Answering) -> None:
        self.asked: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        self.cancelled = threading.Event()
        self.infer_arrays = self.stream_arrays = self
        self._answer = answer

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> _Response:
        self.asked.append((inputs, options))
        return _Response(self, self._answer(inputs, options))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread, as Ray's does."""
    found = asyncio.new_event_loop()
    thread = threading.Thread(target=found.run_forever)
    thread.start()
    yield found
    found.call_soon_threadsafe(found.stop)
    thread.join()
    found.close()


def add_folder(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    found = tmp_path / "models"
    add_folder(found, "other", f'backend: "python" max_batch_size: 4 {TENSORS}')
    add_folder(found, "stream", f'backend: "python" {TENSORS} model_transaction_policy {{ decoupled: true }}')
    add_folder(found, "both", ENSEMBLE)
    own = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }'
    add_folder(found, "own", f'backend: "identity" {own}')
    return found


@pytest.fixture
def server(repository: Path, tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[tpy.Server]:
    """One that calls `other` and `stream`."""
    view = tmp_path / "view"
    view.mkdir()
    seen = with_called(view, (str(repository),), ("other", "stream"), loop)
    with tpy.Server(seen, load_model=("both", "stream", "own")) as server:
        yield server


Serving = Callable[[str, Answering], Handle]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    """Has an application of this name answer so."""

    def serve(name: str, answer: Answering) -> Handle:
        handle = Handle(answer)
        monkeypatch.setattr("ray.serve.get_app_handle", {name: handle}.__getitem__)
        return handle

    return serve


async def doubled(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"outputs": {"Y": inputs["X"] * 2}, "parameters": {"seen": len(options["parameters"])}}


def row(value: float) -> np.ndarray[Any, Any]:
    return np.array([[value]], np.float32)


def test_a_request_crosses_with_what_its_caller_has_asked_for(server: tpy.Server, serving: Serving) -> None:
    handle = serving("other", doubled)
    answer = server.model("other").infer({"X": row(2)}, id="r7", parameters={"depth": 3}, outputs=["Y"], timeout_us=500)
    assert answer["Y"].tolist() == [[4]]
    assert dict(answer.parameters) == {"seen": 1}
    [(_, options)] = handle.asked
    assert options == {"id": "r7", "parameters": {"depth": 3}, "outputs": ("Y",), "timeout_us": 500}


def test_a_step_of_an_ensemble_is_a_model_of_another_application(server: tpy.Server, serving: Serving) -> None:
    handle = serving("other", doubled)
    assert server.model("both").infer({"IN": row(3)})["OUT"].tolist() == [[6]]
    assert len(handle.asked) == 1


def test_many_requests_are_under_way_at_once(server: tpy.Server, serving: Serving) -> None:
    count = 40
    all_came = asyncio.Event()

    async def answer(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(handle.asked) == count:
            all_came.set()
        await all_came.wait()
        return {"outputs": {"Y": inputs["X"]}, "parameters": {}}

    handle = serving("other", answer)

    async def ask() -> list[float]:
        model = server.model("other")
        answers = await asyncio.gather(*[model.infer_async({"X": row(number)}) for number in range(count)])
        return [float(each["Y"][0, 0]) for each in answers]

    assert asyncio.run(ask()) == list(range(count))


def test_an_error_keeps_its_code_and_text(server: tpy.Server, serving: Serving) -> None:
    async def answer(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        return refusal_of(InvalidArgument("not this one"))

    serving("other", answer)
    with pytest.raises(InvalidArgument, match=r"^not this one$"):
        server.model("other").infer({"X": row(1)})


def test_an_application_that_is_not_there_is_named(server: tpy.Server, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Handle:
        raise RayServeException(f"Application '{name}' does not exist.")

    serving("other", doubled)
    monkeypatch.setattr("ray.serve.get_app_handle", missing)
    with pytest.raises(Unavailable, match=r"^the application 'other' does not answer: Application 'other' does not exist"):
        server.model("other").infer({"X": row(1)})
    monkeypatch.setattr("ray.serve.get_app_handle", {"other": Handle(doubled)}.__getitem__)
    assert server.model("other").infer({"X": row(1)})["Y"].tolist() == [[2]]


def test_a_request_whose_application_goes_meanwhile_ends(
    server: tpy.Server, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Handle:
        raise RayServeException("gone")

    async def never(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        monkeypatch.setattr("ray.serve.get_app_handle", missing)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(calls, "RAY_MEMBER_TIMEOUT_S", 0.001)
    serving("other", never)
    with pytest.raises(Unavailable, match=r"^the application 'other' does not answer: gone$"):
        server.model("other").infer({"X": row(1)})


async def waiting(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_deadline_ends_the_call_there_too(server: tpy.Server, serving: Serving) -> None:
    handle = serving("other", waiting)
    for timeout_s in (0.05, 0.5, 5):  # on a slow machine it may be over before anything is asked
        with pytest.raises(Unavailable):
            server.model("other").infer({"X": row(1)}, timeout_s=timeout_s)
        if handle.asked:
            break
    assert handle.cancelled.wait(10)


def test_a_cancelled_request_is_cancelled_there_too(server: tpy.Server, serving: Serving) -> None:
    asked = threading.Event()

    async def answer(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.set()
        return await waiting(inputs, options)

    handle = serving("other", answer)

    async def ask() -> None:
        task = asyncio.create_task(server.model("other").infer_async({"X": row(1)}))
        await asyncio.to_thread(asked.wait)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(ask())
    assert handle.cancelled.wait(10)


def test_responses_of_a_decoupled_model_come_in_order_and_no_faster_than_they_are_read(
    server: tpy.Server, serving: Serving
) -> None:
    sent = 0

    async def counted(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        nonlocal sent
        for number in range(int(inputs["X"][0])):
            sent += 1
            yield {"outputs": {"Y": np.array([number], np.float32)}, "parameters": {}}

    serving("stream", counted)
    count, ahead_max = 3000, 0
    for number, answer in enumerate(server.model("stream").stream({"X": np.array([count], np.float32)})):
        assert answer["Y"].tolist() == [number]
        ahead_max = max(ahead_max, sent - number)
    assert (number, sent) == (count - 1, count)
    assert ahead_max <= EMBEDDED_RESPONSES_MAX + 2 * DECOUPLED_RESPONSES_WAITING_MAX


def test_a_decoupled_model_ends_with_its_error(server: tpy.Server, serving: Serving) -> None:
    async def answer(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        yield {"outputs": {"Y": inputs["X"]}, "parameters": {}}
        yield refusal_of(NotFound("lost"))

    serving("stream", answer)
    answers = server.model("stream").stream({"X": np.array([1], np.float32)})
    assert next(answers)["Y"].tolist() == [1]
    with pytest.raises(NotFound, match=r"^lost$"):
        next(answers)


def test_a_reader_that_leaves_a_stream_cancels_it_there(server: tpy.Server, serving: Serving) -> None:
    async def endless(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        while True:
            yield {"outputs": {"Y": inputs["X"]}, "parameters": {}}

    handle = serving("stream", endless)
    answers = server.model("stream").stream({"X": np.array([1], np.float32)})
    next(answers)
    answers.close()  # type: ignore[attr-defined]  # a generator
    assert handle.cancelled.wait(10)


def test_what_crosses_is_made_of_arrays_texts_and_numbers(tmp_path: Path) -> None:
    with tpy.Server() as server:
        server.add_model("f", lambda X: X + 1, inputs=[("X", "FP32", [1])], outputs=[("Y", "FP32", [1])])
        answer = answer_of(server.model("f").infer({"X": np.ones(1, np.float32)}))
        assert {key: type(value) for key, value in answer.items()} == {"outputs": dict, "parameters": dict}
        assert type(answer["outputs"]["Y"]) is np.ndarray
        with pytest.raises(TpyError) as raised:
            server.model("g").infer({"X": np.ones(1, np.float32)})
    assert refusal_of(raised.value) == {"error": raised.value.code.name, "message": raised.value.message}


def test_other_models_are_those_of_the_repository(server: tpy.Server, repository: Path) -> None:
    assert server.model("own").infer({"INPUT0": np.ones(1, np.float32)})["OUTPUT0"].tolist() == [1]
    server.load("both")
    assert {each.name for each in server.index()} == {each.name for each in repository.iterdir()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty", "its config.pbtxt has to say its inputs and outputs"),
        ("sequences", "which has sequences: load it beside"),
        ("unknown", "calls names the model 'unknown', which is not in "),
    ],
)
def test_models_that_cannot_be_called_are_refused(tmp_path: Path, name: str, text: str) -> None:
    models, view = tmp_path / "models", tmp_path / "view"
    view.mkdir()
    add_folder(models, "empty", 'backend: "python"')
    add_folder(models, "sequences", f'backend: "python" {TENSORS} sequence_batching {{ }}')

    async def make() -> None:
        with_called(view, (str(models), "s3://more"), (name,), asyncio.get_running_loop())

    with pytest.raises(InvalidArgument, match=re.escape(text)):
        asyncio.run(make())
