"""is_ready: asked beside execute, bounded, and no failure of it is more than "not ready"."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from tpy.backend import ChecksReadiness

from .conftest import Serve, Served


def instance(served: Served) -> ChecksReadiness:
    served.output()
    found = served.python
    assert isinstance(found, ChecksReadiness)
    return found


def model(is_ready: str, execute: str = "pass") -> str:
    return f"""
import time, threading, asyncio
class TritonPythonModel:
    ready = True
    def execute(self, requests):
        {execute}
        return [answer(tensor(given(r))) for r in requests]
{is_ready}
"""


def test_models_without_are_not_asked(serve: Serve) -> None:
    assert not instance(serve(model(""))).has_readiness_check


@pytest.mark.parametrize("said", [True, False])
def test_what_the_model_says(serve: Serve, said: bool) -> None:
    found = instance(serve(model(f"    def is_ready(self):\n        return {said}\n")))
    assert found.has_readiness_check
    assert [found.check_ready(5) for _ in range(3)] == [said] * 3


def test_a_coroutine(make: Serve) -> None:
    served = make(model("    async def is_ready(self):\n        await asyncio.sleep(0)\n        return True\n"))
    assert instance(served).check_ready(5)
    served = make(model("    async def is_ready(self):\n        return True\n"), "thread")
    assert not instance(served).check_ready(5)
    assert "needs a separate process" in served.logged("warning")[-1]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 1", "is_ready() must return a boolean value"),
        ("return None", "is_ready() must return a boolean value"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_failures_are_not_ready_and_logged(serve: Serve, body: str, told: str) -> None:
    served = serve(model(f"    def is_ready(self):\n        {body}\n"))
    assert not instance(served).check_ready(5)
    assert told in served.logged("warning")[-1]
    assert served.output().tolist() == [0, 1, 2]


def test_one_that_hangs(make: Serve) -> None:
    served = make(model("    def is_ready(self):\n        time.sleep(1000)\n"))
    found = instance(served)
    assert not found.check_ready(0.1)
    assert "Timed out waiting for user-defined is_ready() response" in served.logged("warning")[-1]
    assert not found.check_ready(0.1)
    assert served.output().tolist() == [0, 1, 2]


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_second_question_waits_for_the_answer_to_the_first(make: Serve, isolation: str) -> None:
    """Also when whoever asked first has given up: the model is asked once."""
    source = """    asked, begun, go = 0, threading.Event(), threading.Event()
    def is_ready(self):
        self.asked += 1
        self.begun.set()
        self.go.wait(20)
        return self.asked == 1
"""
    served = make(model(source, "self.begun.wait(20); time.sleep(0.2); self.go.set()"), isolation)
    found = served.python
    first: queue.SimpleQueue[bool] = queue.SimpleQueue()
    second: queue.SimpleQueue[bool] = queue.SimpleQueue()
    askers = [threading.Thread(target=lambda: first.put(found.check_ready(0.01 if isolation == "process" else 20)))]
    askers[0].start()
    if isolation == "process":
        assert first.get(timeout=20) is False, "gave up"
    askers.append(threading.Thread(target=lambda: second.put(found.check_ready(20))))
    askers[1].start()
    served.run()
    assert second.get(timeout=20) is True
    for asker in askers:
        asker.join()


def test_beside_a_batch_that_runs(make: Serve) -> None:
    served = make(
        model(
            "    def is_ready(self):\n        self.go.set()\n        return True\n",
            "self.go = threading.Event(); self.go.wait(20)",
        )
    )
    assert served.instance
    found = served.python
    batch = threading.Thread(target=served.run)
    batch.start()
    deadline = time.monotonic() + 20
    while not found.check_ready(5) and time.monotonic() < deadline:
        pass
    batch.join(10)
    assert not batch.is_alive()


def test_a_worker_that_is_gone(make: Serve) -> None:
    served = make(model("    def is_ready(self):\n        os._exit(3)\n"))
    found = instance(served)
    assert not found.check_ready(5)
    served.close()
    assert not found.check_ready(5)


def test_an_async_decoupled_model(make: Serve) -> None:
    served = make(
        """
        import asyncio
        class TritonPythonModel:
            loop = None
            async def execute(self, requests):
                self.loop = asyncio.get_running_loop()
                for r in requests:
                    r.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            async def is_ready(self):
                return self.loop is None or self.loop is asyncio.get_running_loop()
        """,
        decoupled=True,
    )
    assert served.instance
    assert served.python.check_ready(5)
