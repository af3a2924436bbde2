"""Options of commands that ask a running server: its address, credentials, TLS, and the form of what they print."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tpy.cli.parsing import UsageError
from tpy.flag import PORT_MAX
from tpy_tools.commands.server_address import port_of_server, url_of_server

if TYPE_CHECKING:
    from tpy_tools.commands.client import Client
    from tpy_tools.load import Tls


_ENCRYPTED = ("https://", "grpcs://")


class ClientTlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS as it is written on the command line."""

    tls: bool = False
    ca_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    tls_verify: bool = True

    def chosen(self, url: str, *, as_url_says: bool = False) -> Tls | None:
        """The way in which connections are encrypted, None for plain ones: for a URL that says so; else, unless that is all that
        counts, with --tls or an option that needs it. Raises UsageError for files that cannot be used."""
        from tpy_tools.load import Tls
        from tpy_tools.load.links import tls_context

        files = {"--ca-file": self.ca_file, "--client-certificate": self.client_certificate, "--client-key": self.client_key}
        if not url.startswith(_ENCRYPTED) and (as_url_says or not (self.tls or any(files.values()) or not self.tls_verify)):
            return None
        if self.client_key and not self.client_certificate:
            raise UsageError("--client-key: expected its certificate, too: --client-certificate FILE")
        for option, file in files.items():
            _require_readable(option, file)
        tls = Tls(
            ca_file=self.ca_file,
            certificate_file=self.client_certificate,
            key_file=self.client_key,
            verify=self.tls_verify,
            verify_host=self.tls_verify,
        )
        try:
            tls_context(tls, [])
        except (OSError, ValueError) as error:
            given = ", ".join(f"{option} {file}" for option, file in files.items() if file)
            raise UsageError(f"{given}: expected PEM, and a key that fits its certificate: {error}") from None
        return tls


def context_of(url: str, options: ClientTlsOptions, *, as_url_says: bool = False) -> ssl.SSLContext | None:
    """The same as a context for HTTP."""
    from tpy_tools.load.links import tls_context

    chosen = options.chosen(url, as_url_says=as_url_says)
    return None if chosen is None else tls_context(chosen, ["http/1.1"])


def client_of_options(
    url: str,
    host: str | None,
    port: int | None,
    headers: Sequence[str],
    tls: Mapping[str, Any],
    *,
    start: str = "tpy serve DIRECTORY",
) -> Client:
    """A client for --url, or the older --host and --port. Raises ClientError, and UsageError for files of TLS."""
    from tpy_tools.commands.client import client_of

    if host or port:
        name = host or "127.0.0.1"
        url = f"[{name}]" if ":" in name else name
    tls_context = context_of(url, ClientTlsOptions(**tls))
    return client_of(url, headers=headers, port=port or port_of_server("http", os.environ), tls=tls_context, start=start)


@contextmanager
def errors_of_server() -> Iterator[None]:
    """A ClientError becomes the error with which the command ends."""
    from tpy_tools.commands.client import ClientError

    try:
        yield
    except ClientError as error:
        raise click.ClickException(str(error)) from error


def tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of TLS, for a command that takes them as the members of ClientTlsOptions."""
    for option in reversed(_TLS_OPTIONS):
        command = option(command)
    return command


def _require_readable(option: str, file: str) -> None:
    if file:
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise UsageError(f"{option}: cannot read '{file}': {error.strerror}") from None


url_option = click.option(
    "-u",
    "--url",
    default=lambda: url_of_server(os.environ),
    show_default="http://127.0.0.1:8000",
    metavar="URL",
    help="The server's HTTP port; by default from TPY_HTTP_ADDRESS and TPY_HTTP_PORT, as for tpy serve.",
)
"""The address of the server, for a command that asks its HTTP port."""

header_option = click.option(
    "-H",
    "--header",
    multiple=True,
    metavar="NAME:VALUE",
    help="Header for every request (gRPC: metadata), such as a credential. Repeat it for several.",
)
"""Headers, for a command that takes them as `header`."""


host_option = click.option("--host", hidden=True)
port_option = click.option("--port", type=click.IntRange(1, PORT_MAX), hidden=True)
"""Older spellings of --url."""

json_flag = click.option("--json", "as_json", is_flag=True, help="Write one JSON document in place of text.")
"""The option --json of a command that writes to standard output only, which takes it as `as_json`."""


def json_option(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option --json that stands alone, for standard output, or names a file; the parameter `name` is "" without it."""
    about = "Write all figures as JSON: to standard output in place of the table, or to a file."
    return click.option("--json", name, default="", is_flag=False, flag_value="-", metavar="[FILE]", help=about)


_TLS_OPTIONS: Sequence[Callable[[Callable[..., None]], Callable[..., None]]] = (
    click.option("--tls", is_flag=True, help="Use TLS; implied by a URL that begins with https:// or grpcs://."),
    click.option("--ca-file", default="", metavar="FILE", help="Certificates to trust, PEM, in place of the system's."),
    click.option("--client-certificate", default="", metavar="FILE", help="The certificate to show, PEM."),
    click.option("--client-key", default="", metavar="FILE", help="Private key (PEM), if not in the certificate file."),
    click.option(
        "--tls-verify/--no-tls-verify", default=True, show_default=True, help="Verify the server's certificate and its name."
    ),
)
