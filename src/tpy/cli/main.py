"""`tpy`: serve, dev, init, import, infer, perf, analyze, top, explain, record, replay, rollout, check, doctor, demo, completion.

Exit codes: 0 done; 1 wrong flags, a server that could not start or stop in order, or a repository with errors; 130 when a
second Ctrl-C ended the server at once.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tpy import __version__
from tpy.cli.auth_key import auth_key
from tpy.cli.completion import completion
from tpy.cli.connecting import ClientTlsOptions, context_of, header_option, tls_options, url_option
from tpy.cli.development import DEFAULTS as DEVELOPMENT_DEFAULTS
from tpy.cli.flags import FLAG_BY_NAME
from tpy.cli.garbage import collect_garbage
from tpy.cli.parsing import Commands, FiniteRange, ServeCommand, UsageError, collect, serve_options
from tpy.cli.top import SORT_NAMES
from tpy.flag import PORT_MAX

if TYPE_CHECKING:
    from tpy.cli.client import Client

_FAILURE = 1
_ERRORS_OF_FILES = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.ELOOP),
    }
)
"""Mistakes of whoever named the file, or of the machine's owner."""

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


_HOST = click.option("--host", hidden=True)
_PORT = click.option("--port", type=click.IntRange(1, PORT_MAX), hidden=True)
"""Older spellings of --url."""


_JSON = click.option("--json", "as_json", is_flag=True, help="Write one JSON document in place of text.")


def _port_of_serve(name: str, default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    kind = click.IntRange(0, PORT_MAX)
    return click.option(name, default=default, show_default=True, type=kind, metavar="N", help="As for tpy serve.")


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
    from tpy.cli.serve_target import serve_target
    from tpy_data.backends.onnxruntime.packages import package_clash

    with ExitStack() as targets:
        given = dict(given)
        model_name = [os.environ.get(FLAG_BY_NAME["model-name"].environment, ""), *given.get("model_name", ())][-1]
        if model_name and not directories:
            raise UsageError("--model-name is for one model: tpy serve DIRECTORY --model-name NAME")
        for directory in directories:
            served = directory
            if "://" not in directory:
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


@cli.command()
@click.argument("repository", nargs=-1, required=True, type=click.Path())
@_JSON
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
    from tpy.cli.check import report
    from tpy.cli.serve_target import require_repository

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


@cli.command()
@click.argument("repository", nargs=-1, type=click.Path(path_type=Path))
@_JSON
@click.option("--http-address", default="0.0.0.0", show_default=True, metavar="ADDRESS", help="As for tpy serve.")
@click.option("--grpc-address", default="0.0.0.0", show_default=True, metavar="ADDRESS", help="As for tpy serve.")
@_port_of_serve("--http-port", 8000)
@_port_of_serve("--grpc-port", 8001)
@_port_of_serve("--metrics-port", 8002)
def doctor(
    repository: tuple[Path, ...],
    as_json: bool,
    http_address: str,
    grpc_address: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
) -> None:
    """Look at Python, packages, backends, GPUs, ports, limits, disks and /dev/shm, and say what is wrong with each and what to
    do. Exit status 1 when something would stop a server."""
    from tpy.cli.doctor import examine, report

    ports = {
        "http-port": (http_address, http_port),
        "grpc-port": (grpc_address, grpc_port),
        "metrics-port": (http_address, metrics_port),
    }
    text, sound = report(examine(repository, ports), as_json=as_json)
    click.echo(text)
    sys.exit(0 if sound else _FAILURE)


@cli.command()
@click.argument("file", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@url_option
@_HOST
@_PORT
@header_option
@tls_options
def demo(file: tuple[Path, ...], url: str, host: str | None, port: int | None, header: tuple[str, ...], **tls: Any) -> None:
    """Ask a running demo server (make serve) what a file is, and what is on it if it is a picture."""
    from tpy.cli.client import ClientError
    from tpy.cli.demo import DemoClient, describe_file

    try:
        client = DemoClient(_client(url, host, port, header, tls, start="make serve"))
        for path in file:
            click.echo("\n".join(describe_file(client, path)))
    except ClientError as error:
        _fail(str(error))


@cli.command()
@click.argument("name")
@click.option(
    "--from", "source", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The trained model, or a model.py."
)
@click.option(
    "--repository",
    default="models",
    show_default=True,
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Repository for the new folder; created if missing.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["onnx", "python", "torchscript", "pytorch", "fil", "litert", "openvino", "tensorflow"]),
    help="Format or backend to serve the model in.",
)
@click.option(
    "--env",
    "environment",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Virtual environment that the model was made in: it is converted there, and a model.py runs there.",
)
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME:TYPE:SIZES", help="An input, for one row, if the file does not describe it."
)
@click.option(
    "--class", "network", default="", metavar="FILE:CLASS", help="Class of the network, if the file has its weights only."
)
def init(
    name: str,
    source: Path,
    repository: Path,
    form: str | None,
    environment: Path | None,
    inputs: tuple[str, ...],
    network: str,
) -> None:
    """Make a model folder of a trained model: ONNX (.onnx), scikit-learn (.joblib, .pkl), PyTorch (.pt, .pt2), XGBoost (.json,
    .ubj), LightGBM (.txt), treelite (.tl), Keras (.keras), LiteRT (.tflite), OpenVINO (.xml), the folder of a SavedModel, or a
    model.py.
    Loading a pickle runs code that is in it: only files that you trust."""
    from tpy.cli.init import InitRequest, create
    from tpy.cli.init.sources import ModelForm, parse_input

    request = InitRequest(
        name=name,
        source=source,
        repository=repository,
        form=None if form is None else ModelForm(form),
        inputs=[parse_input(text) for text in inputs],
        environment=environment,
        network=network,
    )
    click.echo("\n".join(create(request)))


@cli.command()
@click.argument("model")
@click.argument("value", nargs=-1)
@click.option("--output", multiple=True, metavar="NAME", help="Ask for this output only. Repeat it for several.")
@_JSON
@url_option
@_HOST
@_PORT
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
    from tpy.cli.client import ClientError
    from tpy.cli.infer import infer as ask
    from tpy.cli.infer import render, shown_pieces

    try:
        tell = functools.partial(click.echo, err=True)
        answer = ask(_client(url, host, port, header, tls), model, value, outputs=output, say=tell)
    except ClientError as error:
        _fail(str(error))
    for note in answer.notes:
        click.echo(note, err=True)
    if answer.responses is None:
        click.echo(render(answer, as_json=as_json))
        return
    try:
        for piece in shown_pieces(answer.responses, as_json=as_json):
            click.echo(piece, nl=False)
    except ClientError as error:
        _fail(str(error))


@cli.command()
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
@_JSON
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

    from tpy.cli.client import ClientError, client_of, model_path
    from tpy.cli.explain.ask import explain_model, explain_request

    try:
        client = client_of(url, headers=header, tls=context_of(url, ClientTlsOptions(**tls)))
        if as_json and request_id is None:
            lines = [orjson.dumps(client.get(f"{model_path(model)}/explain")).decode()]
        elif request_id is None:
            lines = explain_model(client, model)
        else:
            lines = explain_request(client, model, request_id, trace_file=trace_file, as_json=as_json)
    except ClientError as error:
        _fail(str(error))
    click.echo("\n".join(lines))


@cli.command()
@url_option
@header_option
@tls_options
@click.option("--metrics-url", metavar="URL", help="The server's metrics port; by default port 8002 of the same host.")
@click.option("--sort", default="rate", show_default=True, type=click.Choice(SORT_NAMES), help="Column to sort by.")
@click.option("--model", "pattern", default="*", metavar="PATTERN", help="Only models whose names match, as in a shell.")
@click.option("--interval", default=2.0, show_default=True, type=FiniteRange(min=0.1), metavar="SECONDS", help="Between tables.")
@click.option("--once", is_flag=True, help="Print the table of one interval, and exit.")
@_JSON
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
    from tpy.cli.client import ClientError, client_of
    from tpy.cli.top.run import follow, live
    from tpy.cli.top.run import once as one_table
    from tpy.cli.top.source import METRICS_PORT, ServerSource

    try:
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
    except ClientError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(0)


for _command in (completion, auth_key):
    cli.add_command(_command)


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


def _client(
    url: str,
    host: str | None,
    port: int | None,
    headers: Sequence[str],
    tls: Mapping[str, Any],
    *,
    start: str = "tpy serve DIRECTORY",
) -> Client:
    from tpy.cli.client import client_of
    from tpy.cli.server_address import port_of_server

    if host or port:
        name = host or "127.0.0.1"
        url = f"[{name}]" if ":" in name else name
    tls_context = context_of(url, ClientTlsOptions(**tls))
    return client_of(url, headers=headers, port=port or port_of_server("http", os.environ), tls=tls_context, start=start)


def _fail(message: str) -> NoReturn:
    click.echo(f"tpy: error: {message}", err=True)
    sys.exit(_FAILURE)
