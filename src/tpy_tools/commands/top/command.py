"""`tpy top`: its options."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from tpy.cli.parsing import FiniteRange
from tpy_tools.commands.connecting import (
    ClientTlsOptions,
    context_of,
    errors_of_server,
    header_option,
    json_flag,
    tls_options,
    url_option,
)
from tpy_tools.commands.top import SORT_NAMES


@click.command()
@url_option
@header_option
@tls_options
@click.option("--metrics-url", metavar="URL", help="The server's metrics port; by default port 8002 of the same host.")
@click.option("--sort", default="rate", show_default=True, type=click.Choice(SORT_NAMES), help="Column to sort by.")
@click.option("--model", "pattern", default="*", metavar="PATTERN", help="Only models whose names match, as in a shell.")
@click.option("--interval", default=2.0, show_default=True, type=FiniteRange(min=0.1), metavar="SECONDS", help="Between tables.")
@click.option("--once", is_flag=True, help="Print the table of one interval, and exit.")
@json_flag
def top(
    url: str,
    header: tuple[str, ...],
    metrics_url: str | None,
    sort: str,
    pattern: str,
    interval: float,
    once: bool,
    as_json: bool,
    **tls: Any,
) -> None:
    """Show the models of a running server as a live table: states, rates, queues, batches, latencies, instances, memory. Keys: q
    ends it, s sorts by the next column, r the other way round."""
    from tpy_tools.commands.client import client_of
    from tpy_tools.commands.top.run import follow, live
    from tpy_tools.commands.top.run import once as one_table
    from tpy_tools.commands.top.source import METRICS_PORT, ServerSource

    try:
        with errors_of_server():
            client = client_of(url, headers=header, tls=context_of(url, ClientTlsOptions(**tls)), timeout_s=10)
            page = metrics_url or client.host
            page_tls = context_of(page, ClientTlsOptions(**tls), as_url_says=True)
            metrics = client_of(page, headers=header, port=METRICS_PORT, tls=page_tls, timeout_s=2)
            source = ServerSource(client, metrics, pattern)
            if once or as_json:
                click.echo("\n".join(one_table(source, sort=sort, interval_s=interval, as_json=as_json)))
            elif sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
                live(source, url, sort=sort, interval_s=interval)
            else:
                follow(source, sort=sort, interval_s=interval)
    except KeyboardInterrupt:
        sys.exit(0)
