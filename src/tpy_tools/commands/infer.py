"""`tpy infer`: its options."""

from __future__ import annotations

import functools
from typing import Any

import click

from tpy_tools.commands.connecting import (
    client_of_options,
    errors_of_server,
    header_option,
    host_option,
    json_flag,
    port_option,
    tls_options,
    url_option,
)


@click.command()
@click.argument("model")
@click.argument("value", nargs=-1)
@click.option("--output", multiple=True, metavar="NAME", help="Ask for this output only. Repeat it for several.")
@json_flag
@url_option
@host_option
@port_option
@header_option
@tls_options
def infer(
    model: str,
    value: tuple[str, ...],
    output: tuple[str, ...],
    as_json: bool,
    url: str,
    host: str | None,
    port: int | None,
    header: tuple[str, ...],
    **tls: Any,
) -> None:
    """Ask a running server once. MODEL is NAME or NAME/versions/N. A VALUE is NAME=VALUE (JSON or text), NAME=@FILE, or a file:
    a request in JSON, an array (.npy), a picture, or bytes. Values are fitted to the model's inputs; names that it does not have
    are parameters. The responses of a decoupled model are shown as they come: of a language model the text."""
    from tpy_tools.commands.infer_request import infer as ask
    from tpy_tools.commands.infer_request import render, shown_pieces

    with errors_of_server():
        tell = functools.partial(click.echo, err=True)
        answer = ask(client_of_options(url, host, port, header, tls), model, value, outputs=output, say=tell)
    for note in answer.notes:
        click.echo(note, err=True)
    if answer.responses is None:
        click.echo(render(answer, as_json=as_json))
        return
    with errors_of_server():
        for piece in shown_pieces(answer.responses, as_json=as_json):
            click.echo(piece, nl=False)
