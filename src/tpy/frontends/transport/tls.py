"""TLS for a port: from the files that an operator names to the server's side of a connection."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import msgspec

from tpy.errors import InvalidArgument


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM. `mutual` also demands a certificate from clients, signed by `root_certificate_file`."""

    certificate_file: str = ""
    key_file: str = ""
    root_certificate_file: str = ""
    mutual: bool = False


class ServerTls:
    """TLS of a port, whose files may be read again: `context` is for the next connection."""

    def __init__(self, options: TlsOptions, *, port: str, alpn: Sequence[str]) -> None:
        """Raises as `tls_context`."""
        self._options = options
        self._port = port
        self._alpn = alpn
        self.context = tls_context(options, port=port, alpn=alpn)

    def reload(self) -> None:
        """Read the files again. Raises as `tls_context`, and what was read before stays in use."""
        self.context = tls_context(self._options, port=self._port, alpn=self._alpn)


def tls_context(options: TlsOptions, *, port: str, alpn: Sequence[str]) -> ssl.SSLContext:
    """The server's side of TLS, which offers the protocols `alpn`; `port` names the port in errors. Raises InvalidArgument for
    files that are missing or are not what they should be, and for options that contradict each other."""
    if not options.certificate_file or not options.key_file:
        raise InvalidArgument(f"TLS for {port} needs both the server's certificate file and its key file")
    if options.mutual and not options.root_certificate_file:
        raise InvalidArgument(f"mutual TLS for {port} needs the root certificate file, to check the certificates of clients")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # what HTTP/2 requires
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(alpn)
    try:
        context.load_cert_chain(options.certificate_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        files = f"'{options.certificate_file}' and '{options.key_file}'"
        raise InvalidArgument(f"cannot load the {port} server's certificate and key from {files}: {_reason(error)}") from error
    if options.root_certificate_file:
        try:
            context.load_verify_locations(options.root_certificate_file)
        except (OSError, ssl.SSLError) as error:
            where = f"'{options.root_certificate_file}'"
            raise InvalidArgument(f"cannot load the root certificate for {port} from {where}: {_reason(error)}") from error
    if options.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: OSError | ssl.SSLError) -> str:
    return error.strerror or str(error)
