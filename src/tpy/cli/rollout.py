"""`tpy rollout`: shows how a new version of a model does, waits for what becomes of it, or decides that."""

from __future__ import annotations

import sys
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import click
import msgspec
import orjson

from tpy.cli.client import HTTP_PORT, Client, ClientError
from tpy.cli.connecting import ClientTlsOptions, context_of, header_option, tls_options, url_option
from tpy.cli.server_address import parse_address, parse_headers
from tpy.messages import RolloutArm, RolloutStatus
from tpy.units import NS_PER_MS

_PAUSE_S = 1.0
_FAILURE = 1
_RUNNING = "running"
_ROLLED_BACK = "rolled back"


@click.command()
@click.argument("model")
@url_option
@click.option("--promote", "action", flag_value="promote", help="Give all requests to the new version.")
@click.option("--roll-back", "action", flag_value="roll_back", help="Give all requests to the old version.")
@click.option("--wait", is_flag=True, help="Show each step, until the new version is promoted or rolled back.")
@header_option
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON documents, one a line, in place of text.")
def rollout(model: str, url: str, action: str | None, wait: bool, header: tuple[str, ...], as_json: bool, **tls: Any) -> None:
    """Show the rollout of a new version of MODEL on a running server, or end it. Exit status 1 when the version was rolled back,
    or nothing is rolled out."""
    if wait and action:
        raise click.UsageError("expected one of --wait, --promote and --roll-back")
    host, port = parse_address(url, HTTP_PORT)
    client = Client(host, port, tls=context_of(url, ClientTlsOptions(**tls)), headers=parse_headers(header))
    path = f"/v2/repository/models/{quote(model, safe='')}/rollout"
    try:
        answer = client.post(path, orjson.dumps({"action": action})) if action else client.get(path)
        status = _read(answer)
        _show(status, as_json=as_json)
        if wait:
            status = _watch(client, path, status, as_json=as_json)
    except ClientError as error:
        click.echo(f"tpy: error: {error}", err=True)
        sys.exit(_FAILURE)
    sys.exit(_FAILURE if status.state == _ROLLED_BACK and action != "roll_back" else 0)


def _watch(client: Client, path: str, status: RolloutStatus, *, as_json: bool) -> RolloutStatus:
    """Show each change of state or step until the end, which is returned. Raises ClientError."""
    while status.state == _RUNNING:
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
    new = f"{status.model}: version {status.new.version}"
    reason = f": {status.reason}" if status.reason else ""
    if status.state == _ROLLED_BACK:
        return f"{new} is rolled back, version {status.old.version} gets all requests{reason}"
    if status.state != _RUNNING:
        return f"{new} gets all requests{reason}"
    text = f"{new} gets {status.percent:g} % of the requests, step {status.step} of {status.steps}{reason}"
    if status.compared:
        text += f"; {status.compared} answers compared, {status.differed} differ"
    return f"{text}; {_arm(status.new)}; {_arm(status.old)}"


def _arm(arm: RolloutArm) -> str:
    return f"version {arm.version}: {arm.ended} ended, {arm.failed} failed, p99 {arm.p99_ns / NS_PER_MS:.3g} ms"
