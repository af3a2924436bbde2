"""`tpy record` and `tpy replay`: their options, and what they print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from tpy.cli.parsing import UsageError
from tpy.limits import RECORDING_BYTES_DEFAULT, RECORDING_REQUESTS_DEFAULT, RECORDING_SECONDS_DEFAULT
from tpy_tools.commands.connecting import ClientTlsOptions, context_of, header_option, json_option, tls_options, url_option

_FAILURE = 1
_WRONG_USE = 2
_HTTP_PORT = 8000
_CONTENTS = click.Choice(["full", "hash", "none"])


@click.command()
@click.argument("pattern", nargs=-1)
@url_option
@click.option("--sample", default=1, show_default=True, metavar="N", help="Record one in N requests, or sequences.")
@click.option(
    "--max-bytes", default=RECORDING_BYTES_DEFAULT, show_default=True, metavar="N", help="Stop when the file reaches this size."
)
@click.option("--max-requests", default=RECORDING_REQUESTS_DEFAULT, show_default=True, metavar="N", help="Stop after N requests.")
@click.option("--seconds", default=RECORDING_SECONDS_DEFAULT, show_default=True, metavar="N", help="Stop after N seconds.")
@click.option(
    "--inputs", default="full", show_default=True, type=_CONTENTS, help="Elements of inputs, their SHA-256, or neither."
)
@click.option("--outputs", default="full", show_default=True, type=_CONTENTS, help="The same for outputs.")
@click.option("--without-inputs", is_flag=True, help="As --inputs none.")
@click.option("--hash", "hashed", is_flag=True, help="As --inputs hash --outputs hash.")
@header_option
@tls_options
@click.option("--detach", is_flag=True, help="Start the recording and exit; it goes on.")
@click.option("--status", is_flag=True, help="Only show the state of the recording.")
@click.option("--stop", is_flag=True, help="Only stop the recording.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document in place of text.")
def record(
    pattern: tuple[str, ...],
    url: str,
    sample: int,
    max_bytes: int,
    max_requests: int,
    seconds: int,
    inputs: str,
    outputs: str,
    without_inputs: bool,
    hashed: bool,
    header: tuple[str, ...],
    detach: bool,
    status: bool,
    stop: bool,
    as_json: bool,
    **tls: Any,
) -> None:
    """Record requests of a running server, and their answers, for the models that fit a PATTERN (*, ?, [abc]), into a file of the
    folder that it was started with (--recording-directory). Goes on until a bound is reached, or Ctrl-C."""
    from tpy_tools.commands.client import Client, ClientError
    from tpy_tools.commands.record import RecordingAnswer, Watching, line_of
    from tpy_tools.commands.server_address import parse_address, parse_headers

    if status + stop + bool(pattern) != 1:
        raise click.UsageError("expected patterns of models, --status or --stop")
    host, port = parse_address(url, _HTTP_PORT)
    watching = Watching(
        Client(
            host,
            port,
            start="tpy serve DIRECTORY --recording-directory=DIRECTORY",
            tls=context_of(url, ClientTlsOptions(**tls)),
            headers=parse_headers(header),
        )
    )

    def show(recording: RecordingAnswer) -> None:
        click.echo(msgspec.json.encode(recording).decode() if as_json else line_of(recording))

    try:
        if status or stop:
            show(watching.stop() if stop else watching.status())
            return
        started = watching.start(
            {
                "models": pattern,
                "sample": sample,
                "max_bytes": max_bytes,
                "max_requests": max_requests,
                "max_seconds": seconds,
                "inputs": "hash" if hashed else "none" if without_inputs else inputs,
                "outputs": "hash" if hashed else outputs,
            }
        )
        ended = started if detach else watching.wait(lambda text: click.echo(text, err=True))
        show(ended)
    except ClientError as error:
        _fail(str(error), _FAILURE)


class _Replay(click.Command):
    """A command that ends with 2 when it is used in a wrong way: 1 is for answers that differ."""

    def make_context(self, *arguments: object, **more: object) -> click.Context:
        """Parse the command line."""
        try:
            return super().make_context(*arguments, **more)  # type: ignore[arg-type]  # as they come
        except click.UsageError as error:
            _fail(f"{error.format_message()}; options: tpy replay --help", _WRONG_USE)


@click.command(cls=_Replay)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-u",
    "--url",
    default="",
    metavar="URL",
    help="The server; by default this machine's, at its port for the protocol (TPY_HTTP_PORT, TPY_GRPC_PORT).",
)
@click.option(
    "-i",
    "--protocol",
    default="http",
    show_default=True,
    type=click.Choice(["http", "grpc", "grpc-stream"]),
    help="HTTP, gRPC with a call for each request, or with streams, which decoupled models need.",
)
@click.option(
    "--speed", default="1", show_default=True, metavar="N|max", help="N times as fast as recorded; max: as fast as possible."
)
@click.option(
    "--concurrency", default=64, show_default=True, type=click.IntRange(1, 4096), help="Maximum number of requests in flight."
)
@click.option("--model-as", multiple=True, metavar="OLD=NEW", help="Send requests for OLD to NEW. Repeat it for several.")
@click.option(
    "--tolerance",
    multiple=True,
    metavar="[OUTPUT=]X",
    help="Elements a and b are equal when |a - b| <= X * max(1, |a|); of one output, or of all others. Repeat it for several.",
)
@header_option
@tls_options
@json_option("as_json")
def replay(
    file: Path,
    url: str,
    protocol: str,
    speed: str,
    concurrency: int,
    model_as: tuple[str, ...],
    tolerance: tuple[str, ...],
    header: tuple[str, ...],
    as_json: str,
    **tls: Any,
) -> None:
    """Send the requests of a recording to a server, at the pace at which they came, and compare the answers with the recorded
    ones. Sequences and streams keep their order. Exit status 0 when all are equal, 1 when some differ, 2 when it could not be
    done, or not to its end, or the recording is cut off."""
    from tpy_tools.commands.replay import Wanted, run

    try:
        code = run(
            Wanted(
                file=file,
                url=url,
                protocol=protocol,
                speed=speed,
                concurrency=concurrency,
                model_as=model_as,
                tolerances=tolerance,
                headers=header,
                tls=ClientTlsOptions(**tls),
                report=as_json,
            )
        )
    except UsageError as error:
        _fail(str(error), _WRONG_USE)
    sys.exit(code)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"tpy: error: {message}", err=True)
    sys.exit(code)
