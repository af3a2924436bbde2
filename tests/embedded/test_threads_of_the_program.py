"""Calls from threads of a program: signals, exceptions, the life cycle, what is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import random
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import numpy as np
import pytest
import trio

import tpy
from tests.e2e.waiting import wait_until
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable

X = [("X", np.float32, [-1])]
Y = [("Y", np.float32, [-1])]


@pytest.fixture(scope="module")
def server() -> Iterator[tpy.Server]:
    with tpy.Server() as started:
        started.add_model("echo", lambda X: X, inputs=X, outputs=Y)
        yield started


def test_a_function_that_is_busy_is_waited_for(server: tpy.Server) -> None:
    """One call at a time, whoever runs it."""
    running = threading.Semaphore(1)
    entered, gate = threading.Event(), threading.Event()

    def alone(X: np.ndarray) -> np.ndarray:
        assert running.acquire(blocking=False)
        entered.set()
        gate.wait(60)
        running.release()
        return X

    server.add_model("alone", alone, inputs=X, outputs=Y)
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(server.model("alone").infer, {"X": [number]}) for number in range(40)]
        entered.wait(60)
        gate.set()
        assert [answer.result(60)["Y"].tolist() for answer in answers] == [[number] for number in range(40)]


def test_functions_call_models(server: tpy.Server) -> None:
    server.add_model("outer", lambda X: server.model("echo").infer({"X": X})["Y"] + 1, inputs=X, outputs=Y)
    assert server.model("outer").infer({"X": [1]})["Y"] == [2]


def test_a_function_cannot_stop_its_server(server: tpy.Server) -> None:
    """At once, not when the exit time-out is over."""
    said = []

    def stop(X: np.ndarray) -> np.ndarray:
        with pytest.raises(Internal, match="a model of this server cannot stop it") as error:
            server.stop()
        said.append(error)
        return X

    server.add_model("stop", stop, inputs=X, outputs=Y)
    server.model("stop").infer({"X": [1]})
    server.model("stop").infer({"X": [1]}, timeout_s=60)
    assert len(said) == 2


def test_ctrl_c_ends_the_call(server: tpy.Server) -> None:
    def interrupted(X: np.ndarray) -> np.ndarray:
        signal.raise_signal(signal.SIGINT)
        return X

    server.add_model("interrupted", interrupted, inputs=X, outputs=Y)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            server.model("interrupted").infer({"X": [1]})
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert server.model("echo").infer({"X": [1]})["Y"] == [1]


def test_signals_that_come_at_any_time_leave_the_server_whole(server: tpy.Server) -> None:
    """A handler that raises, called every few microseconds, wherever the main thread is."""

    class TimeIsUp(Exception):
        pass

    def raise_it(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, raise_it)
    interrupted = 0
    model = server.model("echo")
    try:
        for number in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number))
                for _ in range(5):
                    model.infer({"X": [number]})
                signal.setitimer(signal.ITIMER_REAL, 0)
                for _ in range(10):  # a signal that came before that is handled here at the latest
                    pass
            except TimeIsUp:  # once: the timer is over then
                interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 50
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert model.infer({"X": [4]})["Y"] == [4]
    assert model.infer({"X": [4]}, timeout_s=60)["Y"] == [4]


def test_threads_and_tasks_of_all_kinds_ask() -> None:
    threads = []
    with tpy.Server() as server:
        server.add_model("echo", lambda X: threads.append(threading.current_thread()) or X, inputs=X, outputs=Y)
        model = server.model("echo")
        assert model.infer({"X": [1]})["Y"] == [1]
        assert asyncio.run(model.infer_async({"X": np.ones(1, np.float32)}))["Y"] == [1]
        assert trio.run(model.infer_async, {"X": np.ones(1, np.float32)})["Y"] == [1]
        with ThreadPoolExecutor(10) as asking:
            answers = list(asking.map(lambda number: model.infer({"X": [number]}, timeout_s=60)["Y"].tolist(), range(200)))
        assert answers == [[number] for number in range(200)]
        assert list(model.description().input_by_name) == ["X"]
        assert server.statistics("echo")[0].inference_count == 203
        with pytest.raises(InvalidArgument):
            model.infer({"Z": [1]})
    assert threading.current_thread() not in threads
    with pytest.raises(Unavailable, match="has stopped"):
        model.infer({"X": [1]})


def test_a_loop_that_is_closed_with_a_stream_lets_it_go() -> None:
    """Without shutdown_asyncgens."""
    entered, gate = threading.Event(), threading.Event()

    def slow(X: np.ndarray) -> np.ndarray:
        entered.set()
        gate.wait(60)
        return X

    with tpy.Server() as server:
        server.add_model("slow", slow, inputs=X, outputs=Y)
        loop = asyncio.new_event_loop()

        async def begin() -> AsyncGenerator[object]:
            stream = server.model("slow").stream_async({"X": np.zeros(1, np.float32)})
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.to_thread(entered.wait, 60)
            waiting.cancel()
            return stream

        async def start_only() -> AsyncGenerator[object]:
            stream = server.model("slow").stream_async({"X": np.zeros(1, np.float32)})
            stream.asend(None).send(None)  # up to its first wait
            return stream

        loop.run_until_complete(begin())
        stream: object = loop.run_until_complete(start_only())
        assert cancelled(server) < 2
        loop.close()
        del stream
        gc.collect()
        wait_until(lambda: cancelled(server) == 2)
        gate.set()


def cancelled(server: tpy.Server) -> int:
    start = 'nv_inference_request_failure{model="slow",reason="CANCELED"'
    return next(int(float(line.split()[-1])) for line in server.metrics().splitlines() if line.startswith(start))


def test_loops_that_are_none_or_others(server: tpy.Server) -> None:
    asking = server.model("echo").infer_async({"X": np.zeros(1, np.float32)})
    with pytest.raises(InvalidArgument, match="async inference needs a running asyncio or Trio loop"):
        asking.send(None)


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda server: server.model(5), "the name of a model: expected text, got 5"),
        (lambda server: server.model("\ud800"), "the name of a model: expected text"),
        (lambda server: server.model("echo", version="1"), "expected a version from 1 on, or None, got '1'"),
        (lambda server: server.model("echo", version=0), "expected a version from 1 on"),
        (lambda server: server.load(None), "the name of a model: expected text, got None"),
        (lambda server: server.load("echo", files={"1/a": "text"}), "expected files as bytes"),
        (lambda server: server.load("echo", config={"a": object()}), "expected a configuration that JSON can represent"),
        (lambda server: server.model("echo").infer({"X": ["\ud800"]}), "input 'X': expected FP32 values"),
        (lambda server: server.model("echo").infer([1]), "expected inputs by their names"),
        (lambda server: server.model("echo").infer({1: [1]}), "expected inputs by their names"),
    ],
)
def test_wrong_types_are_refused_at_the_border(server: tpy.Server, ask: object, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        ask(server)  # type: ignore[operator]


def test_half_a_surrogate_pair_is_said_to_be_that(server: tpy.Server) -> None:
    server.add_model("text", lambda X: X, inputs=[("X", str, [-1])], outputs=[("Y", str, [-1])])
    with pytest.raises(InvalidArgument, match="input 'X': expected text, got half of a surrogate pair"):
        server.model("text").infer({"X": ["\ud800"]})
    server.add_model("text", lambda X: ["\ud800"], inputs=X, outputs=[("Y", str, [-1])])
    with pytest.raises(TpyError, match="returned output 'Y' as text with half of a surrogate pair"):
        server.model("text").infer({"X": [1]})


ACTIONS = ("infer", "task", "late", "cancel", "replace", "statistics", "infer", "infer", "stop")


@pytest.mark.parametrize("seed", range(8))
def test_any_life_ends_well(seed: int) -> None:
    """Threads that ask, give up, change and stop in any order: each request is answered or refused with a reason, and nothing of
    a server that has stopped is left."""
    chance = random.Random(seed)  # not Hypothesis: threads are not repeatable, and it would say so
    threads = [chance.choices(ACTIONS, k=chance.randrange(1, 12)) for _ in range(chance.randrange(1, 5))]
    with tpy.Server():
        pass  # what the first one of a process opens, and keeps
    threads_before, descriptors_before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    server = tpy.Server(exit_timeout_secs=30)
    server.add_model("f", lambda X: X + 1, inputs=X, outputs=Y, max_batch_size=4)
    server.start()
    problems: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def live(actions: list[str]) -> None:
        try:
            for action in actions:
                _act(server, action)
        except BaseException as error:
            problems.put(error)

    running = [threading.Thread(target=live, args=(actions,)) for actions in threads]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
        assert not thread.is_alive()
    server.stop()
    assert problems.empty(), problems.get()
    gc.collect()
    wait_until(lambda: threading.active_count() <= threads_before)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors_before)  # another server of this process may read a file


def _act(server: tpy.Server, action: str) -> None:
    array = np.array([[1]], np.float32)
    try:
        model = server.model("f")
        if action == "infer":
            assert model.infer({"X": array})["Y"] == [[2]]
        elif action == "late":
            assert model.infer({"X": array}, timeout_s=30)["Y"] == [[2]]
        elif action == "task":
            assert asyncio.run(model.infer_async({"X": array}))["Y"] == [[2]]
        elif action == "cancel":
            responses = model.stream({"X": array})
            next(responses)
            responses.close()  # type: ignore[attr-defined]
        elif action == "replace":
            server.add_model("f", lambda X: X + 1, inputs=X, outputs=Y, max_batch_size=4)
        elif action == "statistics":
            server.statistics("f")
        else:
            server.stop()
    except Unavailable as error:
        assert "stop" in str(error) or "exiting" in str(error).lower() or "not ready" in str(error), error  # noqa: PT017
    except TpyError as error:
        assert action == "replace" or "stop" in str(error), error  # noqa: PT017
