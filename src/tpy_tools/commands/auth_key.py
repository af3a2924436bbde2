"""`tpy auth-key`: makes API keys."""

from __future__ import annotations

import sys

import click

from tpy.cli.parsing import UsageError

_KEY_CHARACTERS_MIN = 32
"""The hash of a key is a fast one: it hides only what nobody can guess."""


@click.command("auth-key")
@click.argument("name")
@click.option(
    "--role",
    multiple=True,
    default=["infer"],
    show_default=True,
    type=click.Choice(["infer", "manage", "observe"]),
    help="What the key may do.",
)
@click.option("--models", multiple=True, default=["*"], show_default=True, metavar="PATTERN", help="Models that it is for.")
@click.option("--stdin", "given", is_flag=True, help="Take the key from standard input instead of making one.")
def auth_key(name: str, role: tuple[str, ...], models: tuple[str, ...], given: bool) -> None:
    """Make an API key for --auth-config: its entry goes to standard output, the key itself, which is kept nowhere, to standard
    error."""
    from tpy.frontends.access.config import digest, key_entry, new_key

    key = sys.stdin.readline().strip() if given else new_key()
    if given and len(key) < _KEY_CHARACTERS_MIN:
        raise UsageError(f"expected a key of at least {_KEY_CHARACTERS_MIN} random characters on standard input, got {len(key)}")
    if not given:
        click.echo(f"the key, shown this once: {key}", err=True)
    click.echo(key_entry(name, digest(key), role, models))
