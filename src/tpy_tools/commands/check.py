"""`tpy check`: its options."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tpy.cli.flags import FLAG_BY_NAME
from tpy_tools.commands.connecting import json_flag

_FAILURE = 1


@click.command()
@click.argument("repository", nargs=-1, required=True, type=click.Path())
@json_flag
@click.option("--model-config-name", default="", metavar="NAME", help="As for tpy serve.")
@click.option("--disable-auto-complete-config", "complete", is_flag=True, help="As for tpy serve.")
@click.option("--model-namespacing", "namespacing", is_flag=True, help="As for tpy serve.")
@click.option(
    "--backend-directory",
    default=FLAG_BY_NAME["backend-directory"].default,
    show_default=True,
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="As for tpy serve.",
)
@click.option("--deep", is_flag=True, help="Also load each model and make one instance of it; runs the code of models.")
def check(
    repository: tuple[str, ...],
    deep: bool,
    as_json: bool,
    model_config_name: str,
    complete: bool,
    namespacing: bool,
    backend_directory: Path,
) -> None:
    """Check every model's configuration; nothing is loaded without --deep. Exit status 1 when something is wrong."""
    from tpy.cli.serve_target import require_repository
    from tpy_tools.commands.check_report import report

    for text in repository:
        if "://" not in text:
            require_repository(Path(text))
    text, sound = report(
        repository,
        as_json=as_json,
        model_config_name=model_config_name,
        auto_complete=not complete,
        namespacing=namespacing,
        backend_directory=backend_directory,
        deep=deep,
        environment=os.environ,
    )
    click.echo(text)
    sys.exit(0 if sound else _FAILURE)
