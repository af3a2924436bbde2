"""From command line and environment to checked values. Click splits the arguments; the table says what they mean."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from tpy.cli.flags import FLAG_BY_NAME, FLAGS, MOST_USED
from tpy.echo import echo
from tpy.flag import Flag, Kind, Support, Value
from tpy.frontends.table import platform_values

_TRUE = frozenset({"true", "1", "on", "t", "yes"})
_FALSE = frozenset({"false", "0", "off", "f", "no"})


_DIGITS_MAX = 40
"""More than any number that is taken has; Python refuses to read very long ones, with its own error text."""


class UsageError(Exception):
    """A flag is unknown, or its value is wrong. `str()` is one line for the user."""


class FiniteRange(click.FloatRange):
    """A range of numbers that has neither infinity nor NaN, which is in every range of click's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def parse_value(flag: Flag, text: str) -> Value:
    """The value of one occurrence. Raises UsageError naming the flag, the value and what was expected."""
    match flag.kind:
        case Kind.BOOLEAN:
            word = text.lower()
            if word in _TRUE or word in _FALSE:
                return word in _TRUE
            raise _bad(flag, f"invalid value for bool option: {text} (expected true or false)")
        case Kind.INTEGER:
            return _integer(flag, text)
        case Kind.CHOICE:
            for choice in flag.choices:
                if choice.lower() == text.lower():
                    return choice
            raise _bad(flag, f"invalid argument for --{flag.name}: {text} (expected one of {', '.join(flag.choices)})")
        case _:
            return text


def _integer(flag: Flag, text: str) -> int:
    if flag.switches and text.lower() in {"true", "false"}:
        return int(text.lower() == "true")
    try:
        number = int(re.sub(r"\.0*$", "", text[:_DIGITS_MAX]))  # Triton takes 2000.0, and its help asks for that in places
    except ValueError:
        raise _bad(flag, f"Invalid option value. Got {echo(text, _DIGITS_MAX)} (expected an integer)") from None
    if flag.minimum == 1 and number < 1:
        raise _bad(flag, f"--{flag.name} must be greater than 0, got {number}")
    if flag.minimum is not None and number < flag.minimum:
        raise _bad(flag, f"Provided option value is out of bound. Got {number} (expected at least {flag.minimum})")
    if number > flag.maximum or number < -flag.maximum:
        raise _bad(
            flag, f"Provided option value is out of bound. Got {echo(text, _DIGITS_MAX)} (expected at most {flag.maximum})"
        )
    return number


def _bad(flag: Flag, why: str) -> UsageError:
    """The refusal of a value, in one line and, where there are some, in Triton's words."""
    return UsageError(f'Bad option: "--{flag.name}". {why}')


def collect(given: Mapping[str, Sequence[str]], environment: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    """Values of all flags by `Flag.field`, and warnings about those without effect.

    `given` maps field to its occurrences on the command line, in order; the last one wins unless the flag is a LIST. The
    environment counts where the command line is silent; a variable that is empty counts as not set; a platform's environment
    counts last. Raises UsageError.
    """
    values: dict[str, Value] = {}
    warnings: list[str] = []
    platform = platform_values(environment)
    for flag in FLAGS:
        texts = list(given.get(flag.field, ()))
        variable = "" if texts else environment.get(flag.environment, "")
        if variable:
            texts = [part for part in variable.split(flag.separator) if part] if flag.kind is Kind.LIST else [variable]
        elif not texts and flag.name in platform:
            texts = [platform[flag.name]]
        try:
            value = _value(flag, texts)
        except UsageError as error:
            raise UsageError(f"{flag.environment}: {error}") if variable else error from None
        values[flag.field] = value
        if texts and flag.successor:
            warnings.append(f"Warning: '--{flag.name}' has been deprecated. Please use '{flag.successor}' instead.")
        if not texts or value == flag.default:
            continue
        if flag.support is Support.IGNORED:
            warnings.append(f"--{flag.name} has no effect: {flag.why}")
    return values, warnings


def _value(flag: Flag, texts: Sequence[str]) -> Value:
    if not texts:
        return flag.default
    if flag.kind is not Kind.LIST:
        return parse_value(flag, texts[-1])
    if "" in texts:
        raise UsageError(f"--{flag.name}: expected a value, got nothing")
    return tuple(texts)


def serve_options(defaults: Mapping[str, str] | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that gives a click command all flags of the table. Every parameter arrives as a tuple of strings. `defaults`,
    by name, are the command's defaults where they differ from the flags', for the help."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for flag in reversed(FLAGS):
            command = _option(flag, (defaults or {}).get(flag.name))(command)
        return command

    return decorate


class ServeCommand(click.Command):
    """A command with the flags of the table, which takes them abbreviated as Triton's does: `--model-repo` for instance."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write out abbreviated flags first."""
        return super().parse_args(ctx, [_written_out(argument) for argument in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the flags that most servers are started with first, then all others by what they are about."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Most used": []}
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        for name in MOST_USED:
            sections["Most used"].append(records.pop(FLAG_BY_NAME[name].field))
        groups = {flag.field: flag.group for flag in FLAGS}
        for field, record in records.items():
            sections.setdefault(groups.get(field or "", "Options"), []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _written_out(argument: str) -> str:
    name, equals, value = argument.removeprefix("--").partition("=")
    if not argument.startswith("--") or not name or name in FLAG_BY_NAME or name == "help":
        return argument
    found = {FLAG_BY_NAME[each].name for each in FLAG_BY_NAME if each.startswith(name)}
    return f"--{found.pop()}{equals}{value}" if len(found) == 1 else argument


def _option(flag: Flag, default: str | None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    spellings = [f"--{name}" for name in (flag.name, *flag.aliases)]
    option = partial(
        click.option,
        *spellings,
        flag.field,
        type=str,
        multiple=True,
        metavar=metavar(flag),
        help=help_text(flag, default),
    )
    if flag.kind is Kind.BOOLEAN:
        # `--allow-http` alone means true; a value may also follow as the next word. Only there: with any flag_value click takes
        # a value that begins with a dash for the next flag.
        return option(is_flag=False, flag_value="true")
    return option()


def metavar(flag: Flag) -> str:
    """The placeholder of the value in help and reference."""
    if flag.metavar:
        return flag.metavar
    match flag.kind:
        case Kind.BOOLEAN:
            return "BOOL"
        case Kind.INTEGER:
            return "N"
        case Kind.CHOICE:
            return "|".join(flag.choices)
        case _:
            return "TEXT"


def help_text(flag: Flag, default: str | None = None) -> str:
    """Help with default (the flag's, where there is no other), environment variable, and what is done of it."""
    shown = default_text(flag) if default is None else default
    default = "" if shown == "" else f" Default: {shown}."
    why = f" Accepted, no effect: {flag.why}." if flag.support is Support.IGNORED else ""
    return f"{flag.help}{default}{why} [{flag.environment}]"


def default_text(flag: Flag) -> str:
    """The default as one would write it."""
    if isinstance(flag.default, bool):
        return "true" if flag.default else "false"
    if isinstance(flag.default, tuple):
        return ",".join(flag.default)
    return str(flag.default)
