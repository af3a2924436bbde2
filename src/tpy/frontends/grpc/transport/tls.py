"""TLS for the gRPC port."""

from __future__ import annotations

import ssl

from tpy.errors import InvalidArgument
from tpy.frontends.grpc.transport.options import GrpcOptions

ALPN = "h2"


def tls_context(options: GrpcOptions) -> ssl.SSLContext | None:
    """The server's side of TLS; None: the port is served in the clear. Raises InvalidArgument for files that are missing or
    are not what they should be, and for options that contradict each other."""
    if not options.tls:
        if options.tls_mutual:
            raise InvalidArgument("gRPC with mutual TLS needs TLS to be switched on")
        return None
    if not options.certificate_file or not options.key_file:
        raise InvalidArgument("TLS for gRPC needs both the server's certificate file and its key file")
    if options.tls_mutual and not options.root_certificate_file:
        raise InvalidArgument("mutual TLS for gRPC needs the root certificate file, to check the certificates of clients")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # what HTTP/2 requires
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([ALPN])
    try:
        context.load_cert_chain(options.certificate_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        files = f"'{options.certificate_file}' and '{options.key_file}'"
        raise InvalidArgument(f"cannot load the gRPC server's certificate and key from {files}: {_reason(error)}") from error
    if options.root_certificate_file:
        try:
            context.load_verify_locations(options.root_certificate_file)
        except (OSError, ssl.SSLError) as error:
            where = f"'{options.root_certificate_file}'"
            raise InvalidArgument(f"cannot load the root certificate for gRPC from {where}: {_reason(error)}") from error
    if options.tls_mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: OSError | ssl.SSLError) -> str:
    return error.strerror or str(error)
