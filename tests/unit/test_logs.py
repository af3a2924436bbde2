"""Log lines: Triton's formats, one line per record whatever the text, settings that change."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
from collections.abc import Iterator

import msgspec
import pytest

from tpy.errors import InvalidArgument, Unavailable, Unsupported
from tpy.messages import LogSettings
from tpy.telemetry.logs import LogController

LOG = logging.getLogger("tpy.test")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def controller(stream: io.StringIO) -> Iterator[LogController]:
    controller = LogController(LogSettings(), stream=stream)
    controller.install()
    yield controller
    controller.remove()


def written(controller: LogController, stream: io.StringIO) -> str:
    controller.flush()
    return stream.getvalue()


def test_default_format_is_tritons(controller: LogController, stream: io.StringIO) -> None:
    LOG.warning("model loaded", extra={"context": {"model": "m", "version": 1}})
    line = written(controller, stream)
    assert re.fullmatch(r'W\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ test_logs\.py:\d+\] "model loaded model=m version=1"\n', line)


@pytest.mark.parametrize("name", ["tpy_control.plane", "tpy_data.engine", "tpy_platforms.sagemaker"])
def test_every_package_of_ours_is_heard(controller: LogController, stream: io.StringIO, name: str) -> None:
    logging.getLogger(name).info("loaded")
    assert written(controller, stream).endswith('"loaded"\n')


def test_iso8601_format(controller: LogController, stream: io.StringIO) -> None:
    controller.update(msgspec.structs.replace(controller.settings, log_format="ISO8601"))
    LOG.error("x")
    assert re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ E \d+ test_logs\.py:\d+\] "x"\n', written(controller, stream))


def test_json_format(controller: LogController, stream: io.StringIO) -> None:
    controller.update(msgspec.structs.replace(controller.settings, log_format="json"))
    LOG.info("hello", extra={"context": {"id": 7}})
    entry = json.loads(written(controller, stream))
    assert (entry["level"], entry["message"], entry["context"]) == ("info", "hello", {"id": "7"})


def test_text_from_outside_cannot_forge_a_value(controller: LogController, stream: io.StringIO) -> None:
    LOG.info("bad", extra={"context": {"id": '7 status=OK "x" \\', "status": "Internal"}})
    message = json.loads(written(controller, stream).partition("] ")[2])
    assert message == 'bad id="7 status=OK \\"x\\" \\\\" status=Internal'


@pytest.mark.parametrize("log_format", ["default", "ISO8601", "json"])
def test_text_from_outside_cannot_forge_a_line(controller: LogController, stream: io.StringIO, log_format: str) -> None:
    controller.update(msgspec.structs.replace(controller.settings, log_format=log_format))
    LOG.info("bad", extra={"context": {"name": 'x"\nE1121 00:00:00.000000 1 forged.py:1] "y\r\x1b[31m\x85\x9b31m\u2028\ud800ü☃'}})
    text = written(controller, stream)
    assert len(text.splitlines()) == 1
    assert text.removesuffix("\n").isprintable()
    assert "ü☃" in text


def test_plain_format_is_for_people(controller: LogController, stream: io.StringIO) -> None:
    controller.update(msgspec.structs.replace(controller.settings, log_format="plain"))
    LOG.info("loading: %(model)s", {"model": "iris"})
    LOG.error('execute failed: "x"\nTraceback:\n  File "model.py", line 3', extra={"context": {"model": "iris"}})
    lines = written(controller, stream).splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d", "00:00:00", line) for line in lines] == [
        "00:00:00 info    loading: iris",
        '00:00:00 ERROR   execute failed: "x"',
        "        | Traceback:",
        '        |   File "model.py", line 3 model=iris',
    ]


def test_text_from_outside_cannot_forge_a_plain_line(controller: LogController, stream: io.StringIO) -> None:
    controller.update(msgspec.structs.replace(controller.settings, log_format="plain"))
    LOG.info("bad", extra={"context": {"name": "x\n00:00:00 ERROR   y\r00:00:00 ERROR z\u202800:00:00\x1b[31m\x9b\ud800"}})
    first, *others = written(controller, stream).splitlines()
    assert first.endswith('bad name="x')
    assert len(others) == 3
    assert all(line.startswith("        | ") and line.isprintable() for line in others)


def test_levels_are_switched_one_by_one(controller: LogController, stream: io.StringIO) -> None:
    controller.update(msgspec.structs.replace(controller.settings, log_info=False, log_verbose_level=2))
    LOG.info("hidden")
    LOG.warning("shown")
    LOG.debug("verbose two", extra={"verbose": 2})
    LOG.debug("verbose three", extra={"verbose": 3})
    text = written(controller, stream)
    assert "hidden" not in text
    assert "shown" in text
    assert "verbose two" in text
    assert "verbose three" not in text


def test_announcements_are_in_the_order_of_the_log(controller: LogController, stream: io.StringIO) -> None:
    LOG.error("the reason")
    controller.announce("error: creating server")
    LOG.info("stopping")
    reason, announced, stopping = written(controller, stream).splitlines()
    assert reason.endswith('"the reason"')
    assert announced == "error: creating server"
    assert stopping.endswith('"stopping"')


def test_a_full_disk_is_reported_once_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    controller = LogController(LogSettings(log_file="/dev/full"))
    controller.install()
    LOG.info("one")
    LOG.info("two")
    controller.remove()
    assert capsys.readouterr().err == "tpy: the log file '/dev/full' cannot be written: [Errno 28] No space left on device\n"


def test_a_closed_pipe_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8", buffering=1) as stream:
        controller = LogController(LogSettings(), stream=stream)
        controller.install()
        LOG.info("lost")
        controller.remove()
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    assert capsys.readouterr().err == ""


def test_refusals_have_tritons_texts(controller: LogController) -> None:
    settings = controller.settings
    with pytest.raises(Unsupported, match="log file location can not be updated through network protocol"):
        controller.update(msgspec.structs.replace(settings, log_file="x"))
    with pytest.raises(Unavailable, match="invalid argument for --log_format, got: x"):
        controller.update(msgspec.structs.replace(settings, log_format="x"))
    with pytest.raises(InvalidArgument):
        controller.update(msgspec.structs.replace(settings, log_verbose_level=-1))
    assert controller.settings == settings
