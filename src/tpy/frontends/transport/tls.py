"""TLS for a port: from the files that an operator names to the server's side of a connection."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import NoReturn

import trio

from tpy.errors import InvalidArgument
from tpy.frontends.core.certificate import validity
from tpy.frontends.transport.tls_options import TlsOptions
from tpy.limits import TLS_FILES_LOOK_S

_log = logging.getLogger(__name__)

_VERSIONS: Mapping[str, ssl.TLSVersion] = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class ServerTls:
    """TLS of a port, whose files may be read again: `context` is for the next connection."""

    def __init__(self, options: TlsOptions, *, port: str, alpn: Sequence[str]) -> None:
        """Raises as `tls_context`."""
        self._options = options
        self._port = port
        self._alpn = alpn
        self._seen = self.fingerprint()
        self.context = self._read()

    def reload(self) -> None:
        """Read the files again. Raises as `tls_context`, and what was read before stays in use."""
        self._seen = self.fingerprint()
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        """The files as they are now. A certificate that is not valid at this moment is a warning: its clients may not mind."""
        context = tls_context(self._options, port=self._port, alpn=self._alpn)
        with open(self._options.certificate_file, "rb") as file:
            times = validity(file.read())
        if times is not None and not times[0] <= datetime.datetime.now(datetime.UTC) <= times[1]:
            _log.warning(
                "%(flag)s: the certificate in '%(file)s' is valid from %(begin)s to %(end)s, not now: clients that check it "
                "disconnect; renew it, or correct this machine's clock",
                {
                    "flag": f"--{self._port.lower()}-server-cert",
                    "file": self._options.certificate_file,
                    "begin": f"{times[0]:%Y-%m-%d}",
                    "end": f"{times[1]:%Y-%m-%d}",
                },
            )
        return context

    async def follow_files(self) -> None:
        """Read the files again whenever they have changed, until cancelled. While a certificate and its key do not fit, because
        only one of them was replaced yet, what was read before stays in use."""
        while True:
            await trio.sleep(TLS_FILES_LOOK_S)
            # In a thread: the files may be on a network's file system that hangs.
            seen = await trio.to_thread.run_sync(self.fingerprint, abandon_on_cancel=True)
            if seen == self._seen:
                continue
            try:
                self.reload()
            except InvalidArgument as error:
                _log.error("certificate not reloaded, the previous one stays in use: %(reason)s", {"reason": error.message})
            else:
                _log.info("certificate of the %(port)s port read again: its files have changed", {"port": self._port})

    def fingerprint(self) -> tuple[tuple[int, ...], ...]:
        """Returns the present state of the files; of a link, as Kubernetes has them, of what it leads to."""
        options = self._options
        found = list[tuple[int, ...]]()
        for path in (options.certificate_file, options.key_file, options.root_certificate_file):
            try:
                status = os.stat(path)
            except OSError:
                found.append(())
            else:
                found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)


def tls_context(options: TlsOptions, *, port: str, alpn: Sequence[str]) -> ssl.SSLContext:
    """The server's side of TLS, which offers the protocols `alpn`; `port` names the port in errors, and its flags. Raises
    InvalidArgument for files that are missing or are not what they should be, and for options that contradict each other."""
    prefix = f"--{port.lower()}"
    if not options.certificate_file or not options.key_file:
        raise InvalidArgument(
            f"TLS for {port} needs both the server's certificate file and its key file "
            f"({prefix}-server-cert, {prefix}-server-key)"
        )
    if options.mutual and not options.root_certificate_file:
        raise InvalidArgument(
            f"mutual TLS for {port} needs the root certificate file, to check the certificates of clients ({prefix}-root-cert)"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.minimum_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if alpn:
        context.set_alpn_protocols(alpn)
    if options.ciphers:
        try:
            context.set_ciphers(options.ciphers)
        except ssl.SSLError:
            raise InvalidArgument(
                f"{prefix}-tls-ciphers: expected ciphers of TLS 1.2 in OpenSSL's notation (openssl ciphers -v), "
                f"got '{options.ciphers}'"
            ) from None
    _load_certificate(context, options, prefix)
    if options.root_certificate_file:
        flag = f"{prefix}-root-cert"
        _require_pem(options.root_certificate_file, flag, "CERTIFICATE", "certificate")
        try:
            context.load_verify_locations(options.root_certificate_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"{flag}: expected certificates in PEM in '{options.root_certificate_file}': {_reason(error)}"
            ) from error
    if options.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, options: TlsOptions, prefix: str) -> None:
    certificate, key = options.certificate_file, options.key_file
    _require_pem(certificate, f"{prefix}-server-cert", "CERTIFICATE", "certificate")
    _require_pem(key, f"{prefix}-server-key", "PRIVATE KEY", "private key")

    def refuse_password() -> NoReturn:
        raise InvalidArgument(
            f"{prefix}-server-key: the key in '{key}' is protected by a password, expected one without "
            "(openssl pkey -in KEY -out NEW), readable by the server's user only"
        )

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidArgument(
                f"{prefix}-server-key: the key in '{key}' does not belong to the certificate in '{certificate}'; expected the "
                "pair that was made together, the server's own certificate first in its file"
            ) from error
        raise InvalidArgument(
            f"{prefix}-server-cert, {prefix}-server-key: expected a certificate and its key in PEM in '{certificate}' and "
            f"'{key}', OpenSSL cannot use them: {_reason(error)}"
        ) from error


def _require_pem(path: str, flag: str, label: str, noun: str) -> None:
    """Raise InvalidArgument unless a block whose label ends in `label` is in the file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise InvalidArgument(f"{flag}: cannot read '{path}': {error.strerror}; expected a {noun} in PEM") from error
    if f"{label}-----".encode() not in content:
        raise InvalidArgument(
            f"{flag}: expected a {noun} in PEM (-----BEGIN {label}-----) in '{path}', found none; convert "
            "other forms with openssl"
        )


def _reason(error: OSError | ssl.SSLError) -> str:
    return error.strerror or str(error)
