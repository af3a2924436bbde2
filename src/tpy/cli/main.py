"""`tpy`: serve and dev, and the commands that `tpy.cli.commands` finds. `tritonserver`.

Exit codes: 0 done; 1 wrong flags, a server that could not start or stop in order, or a repository with errors; 130 when a
second Ctrl-C ended the server at once.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import click

from tpy import __version__
from tpy.cli.commands import Commands
from tpy.cli.development import DEFAULTS as DEVELOPMENT_DEFAULTS
from tpy.cli.flags import FLAG_BY_NAME
from tpy.cli.garbage import collect_garbage
from tpy.cli.parsing import ServeCommand, UsageError, collect, serve_options

_FAILURE = 1
_ERRORS_OF_FILES = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.ELOOP),
    }
)
"""Mistakes of whoever named the file, or of the machine's owner."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.group(cls=Commands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="tpy")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A Triton-compatible inference server. Start with: tpy serve DIRECTORY"""
    if ctx.invoked_subcommand not in {"serve", "dev"}:  # these import more first
        collect_garbage()


@cli.command(cls=ServeCommand, context_settings=_SETTINGS)
@click.argument("directory", nargs=-1, type=click.Path())
@serve_options()
def serve(directory: tuple[str, ...], **given: tuple[str, ...]) -> None:
    """Serve the models of a repository: DIRECTORY, or --model-repository. A folder that is a model itself, a folder with one
    model file, and a model file are served, too. Takes Triton's flags; those without a
    meaning here are accepted with a warning."""
    sys.exit(_serve(directory, given))


@cli.command(cls=ServeCommand, context_settings=_SETTINGS)
@click.argument("directory", nargs=-1, required=True, type=click.Path())
@serve_options(DEVELOPMENT_DEFAULTS)
def dev(directory: tuple[str, ...], **given: tuple[str, ...]) -> None:
    """Serve while you work on the models: like tpy serve, but a changed file is served within a second, a broken one never
    takes the server down, the log is short, and errors of a model carry its traceback."""
    from tpy.cli.development import with_development_defaults

    sys.exit(_serve(directory, with_development_defaults(given, os.environ), development=True))


def _serve(directories: Sequence[str], given: Mapping[str, tuple[str, ...]], *, development: bool = False) -> int:
    from tpy.cli.serve import serve as run
    from tpy.cli.serve_options import server_options
    from tpy_data.onnxruntime_packages import package_clash

    with ExitStack() as targets:
        given = dict(given)
        model_name = [os.environ.get(FLAG_BY_NAME["model-name"].environment, ""), *given.get("model_name", ())][-1]
        if model_name and not directories:
            raise UsageError("--model-name is for one model: tpy serve DIRECTORY --model-name NAME")
        for directory in directories:
            served = directory
            if "://" not in directory:
                from tpy.cli.serve_target import serve_target

                target = targets.enter_context(serve_target(Path(directory), model_name))
                served = str(target.repository)
                if target.taken:
                    click.echo(target.taken, err=True)
            given["model_repository"] = (*given.get("model_repository", ()), served)
        values, warnings = collect(given, os.environ)
        clash = package_clash()
        if clash:
            warnings.append(clash)
        development = development and values["page_on_http"] is True
        return run(server_options(values, warnings, os.environ), development=development)


def main() -> None:
    """The entry point: every mistake of the user ends in one line on standard error and exit code 1."""
    sys.exit(_guarded(lambda: cli.main(prog_name="tpy", standalone_mode=False)))


def tritonserver() -> None:
    """The entry point of start scripts that call Triton's server by its name."""
    sys.exit(_guarded(lambda: serve.main(prog_name="tritonserver", standalone_mode=False)))


def _guarded(run: Callable[[], object]) -> int:
    from tpy.errors import TpyError
    from tpy.usage_data import send_none

    send_none()
    try:
        result = run()
    except click.exceptions.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return _FAILURE
    except click.NoSuchOption as error:
        hint = f", did you mean {' or '.join(error.possibilities)}" if error.possibilities else ""
        of = error.ctx.command_path if error.ctx is not None else "tpy"
        _fail(f"unrecognized option '{error.option_name}'{hint}; options: {of} --help")
    except click.MissingParameter as error:
        of = error.ctx.command_path if error.ctx is not None else "tpy"
        _fail(f"{error.format_message().rstrip('.')}; arguments: {of} --help")
    except click.ClickException as error:
        _fail(error.format_message())
    except (UsageError, TpyError) as error:
        _fail(str(error))
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            _fail(f"cannot write: {error.strerror}")  # standard output into a file on a full disk
        if error.errno == errno.ENOENT and error.filename is None and not _has_temporary_folder():
            _fail("no writable folder for temporary files: set TMPDIR to one")
        if error.errno not in _ERRORS_OF_FILES or error.filename is None:
            raise
        _fail(f"{error.filename2 or error.filename}: {error.strerror}")
    return result if isinstance(result, int) else 0


def _has_temporary_folder() -> bool:
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        return False
    return True


def _fail(message: str) -> NoReturn:
    click.echo(f"tpy: error: {message}", err=True)
    sys.exit(_FAILURE)
