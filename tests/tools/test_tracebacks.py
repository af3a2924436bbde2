"""Tracebacks in a log that are held against the server: its own, however they came there, and none of model code."""

from __future__ import annotations

import logging
import sys

import pytest

from tests.e2e.server import tracebacks
from tpy.telemetry.logs import JsonFormatter, PlainFormatter, TritonFormatter

FORMATTERS = {
    "default": TritonFormatter(iso8601=False),
    "ISO8601": TritonFormatter(iso8601=True),
    "json": JsonFormatter(),
    "plain": PlainFormatter(),
}
TRACE = 'Traceback (most recent call last):\n  File "model.py", line 3, in deep\nValueError: this is bad'


def record(message: str, *, raised: bool = False) -> logging.LogRecord:
    try:
        raise ValueError("execute failed (model 'm')")
    except ValueError:
        return logging.LogRecord("tpy", logging.ERROR, __file__, 1, "%s", (message,), sys.exc_info() if raised else None)


@pytest.mark.parametrize("format", FORMATTERS)
@pytest.mark.parametrize("what", ["execute", "initialize", "finalize", "auto_complete_config", "import of the model"])
def test_one_of_model_code(format: str, what: str) -> None:
    line = FORMATTERS[format].format(record(f"m_0: {what} failed (model 'm', request id 'a'): ValueError: this is bad\n{TRACE}"))
    assert "Traceback" in line
    assert tracebacks(f"{line}\n") == []


@pytest.mark.parametrize("format", FORMATTERS)
def test_one_of_the_server(format: str) -> None:
    line = FORMATTERS[format].format(record("the request failed", raised=True))
    assert tracebacks(f"before\n{line}\nafter\n") == [line.replace("\n        | ", "\\n")]


def test_one_past_the_log() -> None:
    assert tracebacks(f"before\n{TRACE}\nafter\n") == ["Traceback (most recent call last):"]
