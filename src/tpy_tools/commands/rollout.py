"""`tpy rollout`: shows how a new version of a model does, waits for what becomes of it, or decides that."""

from __future__ import annotations

import os
import sys
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import click
import msgspec
import orjson

from tpy.limits import ROLLOUT_PLAN_BYTES_MAX
from tpy.messages import RolloutStatus
from tpy_tools.commands.client import HTTP_PORT, Client, ClientError
from tpy_tools.commands.connecting import ClientTlsOptions, context_of, header_option, tls_options, url_option
from tpy_tools.commands.explain.core.rollout import ROLLED_BACK, RUNNING, words_of
from tpy_tools.commands.server_address import parse_address, parse_headers

_PAUSE_S = 1.0
_FAILURE = 1


@click.command()
@click.argument("model")
@url_option
@click.option("--start", "action", flag_value="start", help="Begin at the first step, also if the version was rolled back.")
@click.option("--plan", metavar="FILE", help="With --start: the plan, JSON as in the model parameter; - for standard input.")
@click.option("--promote", "action", flag_value="promote", help="Give all requests to the new version.")
@click.option("--roll-back", "action", flag_value="roll_back", help="Give all requests to the old version.")
@click.option("--wait", is_flag=True, help="Show each step, until the new version is promoted or rolled back.")
@header_option
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON documents, one a line, in place of text.")
def rollout(
    model: str, url: str, action: str | None, plan: str | None, wait: bool, header: tuple[str, ...], as_json: bool, **tls: Any
) -> None:
    """Show the rollout of a new version of MODEL on a running server, begin it, or end it. Exit status 1 when the
    version was rolled back, or nothing is rolled out."""
    if wait and action:
        raise click.UsageError("expected one of --wait, --start, --promote and --roll-back")
    if plan is not None and action != "start":
        raise click.UsageError("--plan needs --start")
    host, port = parse_address(url, HTTP_PORT)
    client = Client(host, port, tls=context_of(url, ClientTlsOptions(**tls)), headers=parse_headers(header))
    path = f"/v2/repository/models/{quote(model, safe='')}/rollout"
    try:
        change = {"action": action} if plan is None else {"action": action, "plan": _plan(plan)}
        answer = client.post(path, orjson.dumps(change)) if action else client.get(path)
        status = _read(answer)
        _show(status, as_json=as_json)
        if wait:
            status = _watch(client, path, status, as_json=as_json)
    except ClientError as error:
        click.echo(f"tpy: error: {error}", err=True)
        sys.exit(_FAILURE)
    sys.exit(_FAILURE if status.state == ROLLED_BACK and action != "roll_back" else 0)


def _plan(file: str) -> object:
    """The content of a file; the server says what is wrong with the plan in it. Raises ClientError."""
    try:
        text = _text(file)
        if len(text) > ROLLOUT_PLAN_BYTES_MAX:
            size = 0 if file == "-" else os.path.getsize(file)  # 0 for a pipe, too
            shown = size if size > ROLLOUT_PLAN_BYTES_MAX else f"more than {ROLLOUT_PLAN_BYTES_MAX}"
            raise ValueError(f"it has {shown} bytes, expected at most {ROLLOUT_PLAN_BYTES_MAX}")
        return orjson.loads(text)
    except (OSError, ValueError) as error:
        raise ClientError(f"--plan {file} cannot be read: {error}") from None


def _text(file: str) -> bytes:
    """The content, of a longer one than a plan may be a byte more. Raises OSError, and ValueError for a closed input."""
    if file != "-":
        with open(file, "rb") as content:
            return content.read(ROLLOUT_PLAN_BYTES_MAX + 1)
    if sys.stdin is None:  # as Python has it where the descriptor was closed
        raise ValueError("standard input is closed")
    return sys.stdin.buffer.read(ROLLOUT_PLAN_BYTES_MAX + 1)


def _watch(client: Client, path: str, status: RolloutStatus, *, as_json: bool) -> RolloutStatus:
    """Show each change of state or step until the end, which is returned. Raises ClientError."""
    while status.state == RUNNING:
        time.sleep(_PAUSE_S)
        before = status
        try:
            status = _read(client.get(path))
        except ClientError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            status = _ended(client, before)
        if (status.state, status.step, status.new.version) != (before.state, before.step, before.new.version):
            _show(status, as_json=as_json)
    return status


def _ended(client: Client, before: RolloutStatus) -> RolloutStatus:
    """The end of a rollout that the server knows no more: it was promoted, if its version is still there. Raises ClientError."""
    client.text(f"/v2/models/{quote(before.model, safe='')}/versions/{before.new.version}/ready")
    return msgspec.structs.replace(before, state="promoted", percent=100.0)


def _read(document: object) -> RolloutStatus:
    try:
        return msgspec.convert(document, RolloutStatus)
    except msgspec.ValidationError as error:
        raise ClientError(f"unexpected answer: {error}") from None


def _show(status: RolloutStatus, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(status).decode() if as_json else line_of(status))


def line_of(status: RolloutStatus) -> str:
    """The rollout in a line."""
    return f"{status.model}: {words_of(status)}"
