"""`tpy demo`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tpy_tools.commands.connecting import (
    client_of_options,
    errors_of_server,
    header_option,
    host_option,
    port_option,
    tls_options,
    url_option,
)


@click.command()
@click.argument("file", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@url_option
@host_option
@port_option
@header_option
@tls_options
def demo(file: tuple[Path, ...], url: str, host: str | None, port: int | None, header: tuple[str, ...], **tls: Any) -> None:
    """Ask a running demo server (make serve) what a file is, and what is on it if it is a picture."""
    from tpy_tools.commands.demo_client import DemoClient, describe_file

    with errors_of_server():
        client = DemoClient(client_of_options(url, host, port, header, tls, start="make serve"))
        for path in file:
            click.echo("\n".join(describe_file(client, path)))
