"""The commands of `tpy`: `serve` and `dev`, and those of installed packages, each found by its entry point in the group
`tpy.commands`. An entry is NAME = module:attribute, and the attribute a command of click.

The command line imports none of them before it is asked for, and `tpy serve` does not look for them. A command that cannot be
loaded says so when it is asked for, and leaves the others alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint

import click

from tpy.cli.examples import EXAMPLES
from tpy.cli.flags import FLAG_BY_NAME
from tpy.cli.parsing import UsageError
from tpy.errors import Unavailable
from tpy.plugins import OLD_INSTALLATION, described, installed, not_loaded

GROUP = "tpy.commands"


class Commands(click.Group):
    """The commands of tpy; a flag of the server in front of all of them is not one of theirs. A command of this program wins
    over one of the same name in a package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return sorted({*self.commands, *_offered()})

    def get_command(self, ctx: click.Context | None, name: str) -> click.Command | None:
        """See click. Raises UsageError for a command of ours that the installation does not know."""
        if name not in self.commands:  # `serve` is: a server starts without the table
            offered = _offered()
            if name in offered:
                self.add_command(_loaded(name, offered[name]), name)
            elif name in EXAMPLES:
                raise UsageError(f"no entry point '{name}' in '{GROUP}': {OLD_INSTALLATION}")
        return self.commands.get(name)

    def all_commands(self) -> Mapping[str, click.Command]:
        """All of them by name, imported. Raises UsageError as `get_command`."""
        for name in {*EXAMPLES, *_offered()}:
            self.get_command(None, name)
        return self.commands

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        if missing := sorted(EXAMPLES.keys() - set(self.list_commands(ctx))):
            formatter.write_paragraph()
            formatter.write_text(f"Missing: {', '.join(missing)}; {OLD_INSTALLATION}.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse it with the right place for it."""
        if args and args[0].startswith("--") and args[0][2:].partition("=")[0] in FLAG_BY_NAME:
            raise UsageError(f"unrecognized option '{args[0]}', did you mean: tpy serve {shlex.join(args)}")
        return super().parse_args(ctx, args)


class _Unloadable(click.Command):
    """Stands in the list for a command that cannot be loaded. Whatever it is asked for, the answer is the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, short_help="(cannot be loaded)")
        self._reason = reason

    def make_context(self, *_: object, **__: object) -> click.Context:
        """Raises Unavailable."""
        raise Unavailable(self._reason)


def _offered() -> Mapping[str, Sequence[EntryPoint]]:
    """The entry points of each name: one, if not two packages want that name. The same one may be installed twice."""
    found = dict[str, dict[str, EntryPoint]]()
    for entry in installed(GROUP):
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: tuple(entries.values()) for name, entries in found.items()}


def _loaded(name: str, entries: Sequence[EntryPoint]) -> click.Command:
    if len(entries) > 1:
        packages = " and ".join(map(described, entries))
        return _Unloadable(name, f"{packages} both offer the command '{name}'; remove one of the packages")
    [entry] = entries
    try:
        command = entry.load()
        if not isinstance(command, click.Command):
            raise TypeError(f"expected a click.Command, got {type(command).__name__}")
    except (Exception, SystemExit) as error:  # of a package that may not be ours
        return _Unloadable(name, not_loaded(entry, "command", error))
    return command
