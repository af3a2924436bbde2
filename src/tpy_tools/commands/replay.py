"""`tpy replay`: reads a recording, sends its requests, prints the report."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from tpy.cli.parsing import UsageError
from tpy_tools.commands.connecting import ClientTlsOptions
from tpy_tools.commands.server_address import parse_address, parse_headers, port_of_server
from tpy_tools.load import Target
from tpy_tools.replay.core.report import ReplayReport, render
from tpy_tools.replay.loading import RecordingError
from tpy_tools.replay.requests import HTTP
from tpy_tools.replay.run import ReplayOptions, replay

EQUAL, DIFFERENT, FAILED = 0, 1, 2
_STANDARD_OUTPUT = "-"
_PROGRESS_S = 1.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A replay as it is written on the command line."""

    file: Path
    url: str = ""
    protocol: str = HTTP
    speed: str = "1"
    concurrency: int = 64
    model_as: Sequence[str] = ()
    tolerances: Sequence[str] = ()
    headers: Sequence[str] = ()
    tls: ClientTlsOptions = ClientTlsOptions()
    report: str = ""
    differences_kept: int = 1000


def run(wanted: Wanted) -> int:
    """Replay; returns the exit status. Raises UsageError for what is wrong before a request is sent."""
    host, port = parse_address(wanted.url, port_of_server("http" if wanted.protocol == HTTP else "grpc", os.environ))
    headers = parse_headers(wanted.headers)
    target = Target(
        host=host,
        port=port,
        protocol=wanted.protocol,
        metadata=() if wanted.protocol == HTTP else tuple(headers.items()),
        tls=wanted.tls.chosen(wanted.url),
    )
    options = ReplayOptions(
        target=target,
        speed=_speed(wanted.speed),
        concurrency=wanted.concurrency,
        model_as=dict(_pair(text) for text in wanted.model_as),
        tolerances=dict(_tolerance(text) for text in wanted.tolerances),
        headers=headers,
        differences_kept=wanted.differences_kept,
        progress=_progress(),
    )
    _require_writable(wanted.report)
    try:
        report = replay(wanted.file, options)
    except RecordingError as error:
        raise UsageError(f"{wanted.file}: {error}") from None
    if not report.sent and not report.problem:
        reasons = "".join(f"; {count} {reason}" for reason, count in report.left_out.items())
        problem = f"; {report.file_problem}" if report.file_problem else ""
        raise UsageError(f"{wanted.file}: there is no request that can be sent{reasons}{problem}")
    try:
        _print(report, wanted.report)
    except OSError as error:
        raise UsageError(f"cannot write the report: {error.strerror}") from None
    if report.problem or report.file_problem:
        return FAILED
    return DIFFERENT if report.different else EQUAL


def _print(report: ReplayReport, place: str) -> None:
    document = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if place == _STANDARD_OUTPUT:
        click.echo(document.decode())
        return
    click.echo(render(report))
    if place:
        Path(place).write_bytes(document + b"\n")


def _progress() -> Callable[[int, int], None]:
    """Says on a terminal how far it is, each second."""
    if not sys.stderr.isatty():
        return lambda answered, count: None
    shown_s = [time.monotonic()]

    def show(answered: int, count: int) -> None:
        now_s = time.monotonic()
        if now_s - shown_s[0] >= _PROGRESS_S:
            shown_s[0] = now_s
            click.echo(f"{answered} of {count} answered", err=True)

    return show


def _speed(text: str) -> float:
    if text == "max":
        return 0.0
    speed = _number(text)
    if speed is None or speed <= 0:
        raise UsageError(f"--speed: expected a number above 0, or max, got '{text}'")
    return speed


def _tolerance(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    tolerance = _number(number)
    if tolerance is None or tolerance < 0:
        raise UsageError(f"--tolerance: expected OUTPUT=NUMBER or NUMBER, got '{text}'")
    return name, tolerance


def _pair(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise UsageError(f"--model-as: expected OLD=NEW, got '{text}'")
    return old, new


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _require_writable(place: str) -> None:
    """Raise UsageError for a report that cannot be written, before hours of replay."""
    if place and place != _STANDARD_OUTPUT:
        try:
            Path(place).open("ab").close()
        except OSError as error:
            raise UsageError(f"--json: cannot write '{place}': {error.strerror}") from None
