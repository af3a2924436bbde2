"""`tpy import`: its options, and what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tpy.cli.parsing import UsageError


@click.command("import", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "repository",
    default="models",
    show_default=True,
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Repository for the model folders; created if missing.",
)
@click.option("--dry-run", is_flag=True, help="Only show what becomes of each part.")
@click.option("--trust", is_flag=True, help="Also import models that run their author's code in the server, as pickles do.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document in place of text.")
def import_models(source: Path, repository: Path, *, dry_run: bool, trust: bool, as_json: bool) -> None:
    """Make model folders of what another server serves. SOURCE is the folder of an MLflow model, or its address in the registry
    (models:/NAME/VERSION); a models.config of TensorFlow Serving, or the base path of a model there; an archive or a model store
    of TorchServe; a folder with models of MLServer; a config.json of OpenVINO Model Server; the folder of a Hugging Face model.
    Shows what becomes of each part and what cannot be carried over; nothing of SOURCE is run or changed. Exit status 1 when a
    model is not imported."""
    from tpy_tools.commands.importing.core.plan import Unimportable
    from tpy_tools.commands.importing.core.report import as_json_text, as_text
    from tpy_tools.commands.importing.registry import fetched
    from tpy_tools.commands.importing.sources import plan_of
    from tpy_tools.commands.importing.writing import perform, without_existing

    try:
        with fetched(source) as folder:
            plan = without_existing(plan_of(folder, trust=trust), repository)
            if not dry_run:
                plan = perform(plan, folder, repository)
    except Unimportable as error:
        raise UsageError(f"{source}: {error}") from None
    click.echo(as_json_text(plan, repository) if as_json else as_text(plan, repository, dry_run=dry_run))
    sys.exit(1 if plan.refused else 0)
