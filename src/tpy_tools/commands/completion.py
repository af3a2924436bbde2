"""`tpy completion`: the completion of commands and options in a shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from tpy.cli.parsing import UsageError

_VARIABLE = "_TPY_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.option("--install", is_flag=True, help="Install it where the shell looks for this user's completions.")
def completion(shell: str, install: bool) -> None:
    """Print the completion of tpy for a shell: eval "$(tpy completion bash)". With --install it is there in each new shell."""
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"no completion for {shell}")
    text = kind(root, {}, "tpy", _VARIABLE).source()
    if not install:
        click.echo(text)
        return
    place = _place(shell)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    click.echo(f"written: {place}")
    if shell == "zsh":
        click.echo(f"~/.zshrc needs, before compinit: fpath=({place.parent} $fpath)")


def _place(shell: str) -> Path:
    """The file from which a shell loads the completion of tpy."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "bash":
        return data / "bash-completion" / "completions" / "tpy"
    if shell == "zsh":
        return data / "zsh" / "site-functions" / "_tpy"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "tpy.fish"
