"""Failures of model code are in the log, with its traceback and the requests that it cost; but not without end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, Served, request
from tests.backends.python.test_decoupled import FINAL, ask, told
from tests.e2e.waiting import wait_until
from tpy.errors import Internal
from tpy_data.backends.python.worker.model.failure_log import REPORTS_MAX, WINDOW_S, InstanceFailureLog
from tpy_data.backends.python.worker.pb_utils import context
from tpy_data.backends.python.worker.pb_utils.failures import ModelFailure

RAISES = """
class TritonPythonModel:
    {begin} execute(self, requests):
        for request in requests:
            {first}
        self.deep()
    def deep(self):
        raise ValueError("this is bad")
"""


def report(served: Served) -> str:
    """The only error that was logged."""
    served.close()  # everything has come then
    (text,) = served.logged("error")
    return text


def check(text: str, what: str) -> None:
    first, *rest = text.split("\n")
    assert first.endswith(what), text
    assert rest[0] == "Traceback (most recent call last):"
    assert rest[-1] == what.partition("): ")[2]
    assert "model.py" in rest[1], "it begins with the model's own code"
    assert "/worker/" not in text


def test_an_exception_in_execute(serve: Serve) -> None:
    served = serve(RAISES.format(begin="def", first="pass"), max_batch_size=4)
    with pytest.raises(Internal, match="this is bad"):
        served.run(request(np.ones((1, 3), np.float32), id="a"), request(np.ones((1, 3), np.float32), id="b"))
    text = report(served)
    check(text, "execute failed (model 'm', request id 'a', 'b'): ValueError: this is bad")
    assert "in deep" in text
    assert text.startswith("m_0: ")


def test_in_a_decoupled_one(serve: Serve) -> None:
    served = serve(RAISES.format(begin="def", first="pass"), decoupled=True)
    with pytest.raises(Internal, match="this is bad"):
        ask(served, 1, id="a")
    check(report(served), "execute failed (model 'm', request id 'a'): ValueError: this is bad")


def test_in_a_coroutine(make: Serve) -> None:
    served = make(RAISES.format(begin="async def", first="await __import__('asyncio').sleep(0)"))
    with pytest.raises(Internal, match="this is bad"):
        served.run(request(id="a"))
    check(report(served), "execute failed (model 'm', request id 'a'): ValueError: this is bad")


def test_in_a_decoupled_coroutine_after_the_final_flag(make: Serve) -> None:
    """Nobody is told of it any more, but for the log."""
    served = make(RAISES.format(begin="async def", first=f"request.get_response_sender().send(flags={FINAL})"), decoupled=True)
    assert told(ask(served, 1, id="a")) == ["end"]
    wait_until(lambda: served.logged("error"))  # the request has ended before its model failed
    check(report(served), "execute failed (model 'm', request id 'a'): ValueError: this is bad")


def test_what_is_no_exception_of_the_model(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                return 5
    """)
    with pytest.raises(Internal, match="Expected a list"):
        served.run()
    assert report(served) == "m_0: execute failed (model 'm'): Expected a list in the execute return, found type '<class 'int'>'."


@pytest.mark.parametrize("step", ["import of the model", "initialize"])
def test_before_it_serves(serve: Serve, step: str) -> None:
    where = "def initialize(self, args):\n        " if step == "initialize" else ""
    served = serve(f"class TritonPythonModel:\n    {where}raise RuntimeError('not today')\n")
    with pytest.raises(Internal, match="not today"):
        served.run()
    check(report(served), f"{step} failed (model 'm'): RuntimeError: not today")


def test_finalize(serve: Serve) -> None:
    served = serve("""
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(tensor(given(r))) for r in requests]
            def finalize(self):
                raise RuntimeError("not today")
    """)
    served.output()
    check(report(served), "finalize failed (model 'm'): RuntimeError: not today")


def test_auto_complete_config(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                raise RuntimeError("not today")
    """)
    with pytest.raises(Internal, match="not today"):
        served.backend.auto_complete(served.context)
    check(report(served), "auto_complete_config failed (model 'm'): RuntimeError: not today")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    logged: list[str] = []
    context.set_for_thread(context.RunnerContext("", lambda level, text: logged.append(f"{level} {text}")))
    yield logged
    context.set_for_thread(None)


def test_many_failures_are_counted(lines: list[str]) -> None:
    now_s = [0.0]
    log = InstanceFailureLog("m", lambda: now_s[0])
    for number in range(1000):
        log.report("execute", ValueError(str(number)))
    assert len(lines) == REPORTS_MAX
    now_s[0] = WINDOW_S
    log.report("execute", ValueError("again"))
    assert f"({1000 - REPORTS_MAX} failures before this one are not in the log)" in lines[-1]
    log.report("execute", ValueError("again"))
    assert "not in the log" not in lines[-1]


def test_ids_are_bounded_and_what_cannot_be_shown_is_not_waited_for(lines: list[str]) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    log = InstanceFailureLog("m")
    log.report("execute", Odd(), ["x" * 10_000, "", *map(str, range(30))])
    assert "and 23 more" in lines[0]
    assert len(lines[0]) < 1500
    assert "Odd: <its text cannot be read>" in lines[0]
    try:
        raise ModelFailure("told to clients") from ValueError("the cause")
    except ModelFailure as failure:
        log.report("execute", failure)
    assert lines[1].startswith("error execute failed (model 'm'): ValueError: the cause\n")
    context.set_for_thread(None)
    log.report("execute", ValueError("nobody listens"))
    assert len(lines) == 2


def test_a_failing_model_does_not_fill_the_log(make: Serve, tmp_path: Path) -> None:
    served = make(RAISES.format(begin="def", first="pass"))
    for _ in range(50):
        with pytest.raises(Internal):
            served.run()
    served.close()
    assert REPORTS_MAX <= len(served.logged("error")) < 50
