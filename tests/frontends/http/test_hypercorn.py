"""Guards the parts of Hypercorn that we lean on and that it does not promise.

Read quart_bridge.py and application.py before changing this.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from dataclasses import fields

from hypercorn.config import Config
from hypercorn.protocol import events
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_version_is_the_one_that_was_read() -> None:
    assert importlib.metadata.version("hypercorn") == "0.18.0"


def test_http_stream_is_built_and_fed_as_we_do() -> None:
    assert parameters(HTTPStream) == ["app", "config", "context", "task_group", "ssl", "client", "server", "send", "stream_id"]
    assert inspect.iscoroutinefunction(HTTPStream.handle)
    assert [field.name for field in fields(events.Request)] == [
        "stream_id",
        "headers",
        "http_version",
        "method",
        "raw_path",
        "state",
    ]
    assert [field.name for field in fields(events.Response)] == ["stream_id", "headers", "status_code"]
    assert [field.name for field in fields(events.Body)] == ["stream_id", "data"]


def test_the_task_group_is_a_nursery() -> None:
    assert parameters(TaskGroup.spawn_app) == ["self", "app", "config", "scope", "send"]
    assert "start_soon" in inspect.getsource(TaskGroup.spawn_app)
    assert "open_nursery" in inspect.getsource(TaskGroup.__aenter__)
    assert WorkerContext(None)


def test_lifespan_starts_and_ends_as_we_drive_it() -> None:
    assert parameters(Lifespan) == ["app", "config", "state"]
    for name in ("handle_lifespan", "wait_for_startup", "wait_for_shutdown"):
        assert inspect.iscoroutinefunction(getattr(Lifespan, name))


def test_the_configuration_has_the_knobs_that_we_turn() -> None:
    for knob in (
        "include_date_header",
        "include_server_header",
        "errorlog",
    ):
        assert hasattr(Config, knob)
