"""Exceptions of backends: in the log with model, instance, request ids and traceback, and not without end."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tpy.clock import SystemClock
from tpy.errors import Internal, InvalidArgument
from tpy.limits import FAILURE_REPORTS_MAX, FAILURE_REPORTS_S
from tpy_data.engine.requests.batch import Batch, FailureLog


def ticket(request_id: str) -> Any:
    return SimpleNamespace(id=request_id, owner=SimpleNamespace(name="m"), residency=None, sender=None, record=None)


class Raises:
    """An instance whose `execute` raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def execute(self, batch: object) -> Any:
        raise self.error

    def close(self) -> None: ...


def executed(caplog: pytest.LogCaptureFixture, error: BaseException, instance: str) -> list[str]:
    batch = Batch(instance, [ticket("a"), ticket(""), ticket("b")])
    with caplog.at_level(logging.ERROR):
        batch.execute(cast(Any, Raises(error)), SystemClock())
    assert all(result.error is not None for result in batch.results)
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


@pytest.mark.parametrize("error", [ZeroDivisionError("no such number"), Internal("no such number"), SystemExit("no such number")])
def test_an_exception_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture, error: BaseException) -> None:
    (line,) = executed(caplog, error, f"m_{type(error).__name__}")
    assert (
        f"m_{type(error).__name__}: execute failed (model 'm', request id 'a', 'b'): {type(error).__name__}: no such num" in line
    )
    assert "Traceback" in line
    assert ", in execute\n    raise self.error" in line


def test_what_is_the_callers_fault_or_logged_already_is_not(caplog: pytest.LogCaptureFixture) -> None:
    logged = Internal("by the backend")
    logged.is_logged = True
    assert executed(caplog, logged, "m_0") == []
    assert executed(caplog, InvalidArgument("a shape"), "m_0") == []


def test_a_model_that_always_fails_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = FailureLog(lambda: now_s)
    with caplog.at_level(logging.ERROR):
        for _ in range(FAILURE_REPORTS_MAX + 7):
            log.report("m_0", [ticket("a")], ValueError("always"))
        assert len(caplog.records) == FAILURE_REPORTS_MAX
        log.report("other_0", [ticket("a")], ValueError("another instance"))
        assert len(caplog.records) == FAILURE_REPORTS_MAX + 1
        now_s = FAILURE_REPORTS_S
        log.report("m_0", [ticket("a")], ValueError("always"))
    assert "(7 failures before this one are not in the log)" in caplog.records[-1].getMessage()
