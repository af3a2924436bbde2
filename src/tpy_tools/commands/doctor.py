"""`tpy doctor`: its options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from tpy.flag import PORT_MAX
from tpy_tools.commands.connecting import json_flag

_FAILURE = 1


def _port_of_serve(name: str, default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    kind = click.IntRange(0, PORT_MAX)
    return click.option(name, default=default, show_default=True, type=kind, metavar="N", help="As for tpy serve.")


@click.command()
@click.argument("repository", nargs=-1, type=click.Path(path_type=Path))
@json_flag
@click.option("--http-address", default="0.0.0.0", show_default=True, metavar="ADDRESS", help="As for tpy serve.")
@click.option("--grpc-address", default="0.0.0.0", show_default=True, metavar="ADDRESS", help="As for tpy serve.")
@_port_of_serve("--http-port", 8000)
@_port_of_serve("--grpc-port", 8001)
@_port_of_serve("--metrics-port", 8002)
def doctor(
    repository: tuple[Path, ...],
    as_json: bool,
    http_address: str,
    grpc_address: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
) -> None:
    """Look at Python, packages, backends, GPUs, ports, limits, disks and /dev/shm, and say what is wrong with each and what to
    do. Exit status 1 when something would stop a server."""
    from tpy_tools.commands.doctor_machine import examine, report

    ports = {
        "http-port": (http_address, http_port),
        "grpc-port": (grpc_address, grpc_port),
        "metrics-port": (http_address, metrics_port),
    }
    text, sound = report(examine(repository, ports), as_json=as_json)
    click.echo(text)
    sys.exit(0 if sound else _FAILURE)
