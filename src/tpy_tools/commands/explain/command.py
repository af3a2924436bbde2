"""`tpy explain`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tpy_tools.commands.connecting import (
    ClientTlsOptions,
    context_of,
    errors_of_server,
    header_option,
    json_flag,
    tls_options,
    url_option,
)


@click.command()
@click.argument("model")
@url_option
@header_option
@tls_options
@click.option("--request", "request_id", metavar="ID", help="Explain the traced request with this id instead.")
@click.option(
    "--trace-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The server's trace file, if it is not at the path that the server names.",
)
@json_flag
def explain(
    model: str,
    url: str,
    header: tuple[str, ...],
    request_id: str | None,
    trace_file: Path | None,
    as_json: bool,
    **tls: Any,
) -> None:
    """Say what a running server does with the requests of a model: what they wait for, what each instance does, which limit
    binds, and what to change. MODEL is NAME or NAME/versions/N."""
    import orjson

    from tpy_tools.commands.client import client_of, model_path
    from tpy_tools.commands.explain.ask import explain_model, explain_request

    with errors_of_server():
        client = client_of(url, headers=header, tls=context_of(url, ClientTlsOptions(**tls)))
        if as_json and request_id is None:
            lines = [orjson.dumps(client.get(f"{model_path(model)}/explain")).decode()]
        elif request_id is None:
            lines = explain_model(client, model)
        else:
            lines = explain_request(client, model, request_id, trace_file=trace_file, as_json=as_json)
    click.echo("\n".join(lines))
