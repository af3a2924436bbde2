"""Errors of repositories in the cloud: what failed, why, and what to do about it.

The client library's own texts are not shown: they have the answers of servers in them, which may repeat keys and signatures.
"""

from __future__ import annotations

import enum
import re
from typing import Final

from tpy.echo import echo
from tpy_cloud.address import CloudAddress, Provider


class CloudErrorKind(enum.Enum):
    """The consequence of an error for the copy of a model."""

    AWAY = "away"
    """The provider does not answer, or refuses for now: trying again may help, and what is served goes on."""
    REFUSED = "refused"
    """The provider answers that it will not: credentials, permissions, names."""
    CHANGED = "changed"
    """The object is not the one that was listed."""
    BROKEN = "broken"
    """The download is not the object, or the local copy cannot be written."""


class CloudError(Exception):
    """A request that failed. The text names the repository, the key where there is one, the cause and the remedy."""

    def __init__(self, text: str, kind: CloudErrorKind, status: int = 0, *, cause: str = "") -> None:
        """`status` is the HTTP status of the answer, 0 for none; `cause` is the text without repository and key."""
        super().__init__(text)
        self.text = text
        self.cause = cause or text
        self.kind = kind
        self.status = status


def served_on(error: CloudError) -> CloudError:
    """The error of a model that is served, of which the provider does not say what there is now, or does not give it: a load call
    must not answer that all is well."""
    return CloudError(f"{error.text}; previously loaded versions stay in service", error.kind, status=error.status)


ENVIRONMENT: Final = "the environment"
"""The source of credentials that only a restart can change; others are files."""

_CLOCK: Final = "the clock of this machine is wrong: set it"
_S3_KEYS: Final = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
KEYS: Final = {
    Provider.S3: _S3_KEYS,
    Provider.GCS: "GOOGLE_APPLICATION_CREDENTIALS",
    Provider.AZURE: "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY",
    Provider.OSS: "OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET",
}
_REMEDIES: Final = {
    "InvalidAccessKeyId": "the key id is unknown there: check {keys}",
    "SignatureDoesNotMatch": "the secret key does not belong to the key id: check {keys}",
    "ExpiredToken": "the session token has expired: get new credentials, {renew}",
    "ExpiredTokenException": "the session token has expired: get new credentials, {renew}",
    "TokenRefreshRequired": "the session token has expired: get new credentials, {renew}",
    "InvalidToken": "the session token is not valid: check AWS_SESSION_TOKEN, or unset it",
    "SecurityTokenExpired": "the security token has expired: get new credentials, {renew}",
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "AuthorizationHeaderMalformed": "the bucket is in another region: set AWS_DEFAULT_REGION",
    "PermanentRedirect": "the bucket is in another region: set AWS_DEFAULT_REGION",
    "IllegalLocationConstraintException": "the bucket is in another region: set AWS_DEFAULT_REGION",
    "NoSuchBucket": "there is no such bucket: check its name, the region and the endpoint",
    "ContainerNotFound": "there is no such container: check its name and the account",
    "AccessDenied": "the credentials may not do this: they need the permissions to list and to read ({keys})",
    "AuthorizationPermissionMismatch": "the identity needs the role Storage Blob Data Reader",
    "AuthenticationFailed": "the credentials are not valid ({keys}), or the clock of this machine is wrong",
    "InvalidAuthenticationInfo": "the credentials are not valid: check {keys}",
    "InvalidObjectState": "the object is archived: restore it first",
}
_STATUS_REMEDIES: Final = {
    301: "the bucket is in another region: set AWS_DEFAULT_REGION",
    400: "the endpoint refuses the request: check the address, the endpoint and the region",
    401: "credentials are missing or not valid: check {keys}",
    403: "the credentials may not do this, or are missing: check {keys}",
    404: "not found: check the bucket, the path and the endpoint",
}


def about(address: CloudAddress, cause: str, kind: CloudErrorKind, *, key: str = "", status: int = 0) -> CloudError:
    """An error about a repository, or an object in it."""
    where = f"{address} (bucket '{address.bucket}'" + (f", key '{echo(key)}')" if key else ")")
    return CloudError(f"{where}: {cause}", kind, status, cause=cause)


def translate(
    address: CloudAddress, error: BaseException, *, key: str = "", source: str = "", anonymous: bool = False
) -> CloudError:
    """The error that an exception of the client library means. `source` says where the credentials are from."""
    name, text = type(error).__name__, str(error)
    if name == "PreconditionError":
        return about(address, "the object has changed meanwhile", CloudErrorKind.CHANGED, key=key)
    if name == "InvalidPathError":
        found = re.search(r'Path "([^"]*)"', text)
        return about(
            address,
            f"the key '{echo(found[1] if found else key)}' is not a file path: rename the object",
            CloudErrorKind.BROKEN,
        )
    status = int(found[1]) if (found := re.search(r"status code: (\d{3})|status: (\d{3})", text)) and found[1] else 0
    code = found[1] if (found := re.search(r"<Code>(\w{1,64})</Code>", text)) else ""
    if isinstance(error, FileNotFoundError) and key and code != "NoSuchBucket":
        return about(address, "the object is gone", CloudErrorKind.CHANGED, key=key)
    if status in (408, 429) or status >= 500 or code in ("SlowDown", "RequestTimeout", "Throttling", "ServerBusy"):
        return about(
            address, f"the provider answers {_named(status, code)}: it is overloaded, or throttles", CloudErrorKind.AWAY, key=key
        )
    if status:
        remedy = _REMEDIES.get(code) or _STATUS_REMEDIES.get(status, "the endpoint refuses the request")
        if anonymous and status in (401, 403):
            remedy = "the repository is not public, and there are no credentials: set {keys}"
        renew = "which are read again" if source not in ("", ENVIRONMENT) else "and restart the server"
        cause = f"{_named(status, code)}: {remedy.format(keys=KEYS[address.provider], renew=renew)}"
        if source and not anonymous:
            cause += f"; credentials are from {source}"
        return about(address, cause, CloudErrorKind.REFUSED, key=key, status=status)
    kind = CloudErrorKind.REFUSED if "redirect" in text else CloudErrorKind.AWAY
    return about(address, _connection(address, text, name), kind, key=key)


def _named(status: int, code: str) -> str:
    return f"{status} {code}" if code not in ("", str(status)) else str(status)


def _connection(address: CloudAddress, text: str, name: str) -> str:
    """The cause of a request that got no answer."""
    found = re.search(r"(?:GET|HEAD|POST|PUT) (https?://)(?:[^/\s?]*@)?([^/\s?@]+)", text)  # a password may be before the host
    host = f"{found[1]}{found[2]}" if found else "the endpoint"
    if "BadScheme" in text:
        return f"{host} redirects to an address without TLS, which is not followed"
    if "redirect" in text:
        return f"{host} redirects: the bucket is in another region: set AWS_DEFAULT_REGION"
    if "dns error" in text:
        return f"the name of {host} cannot be resolved: check the endpoint, the region and DNS"
    if "ConnectionRefused" in text:
        return f"{host} refuses the connection: check the endpoint"
    if "invalid list response" in text:
        return f"{host} did not answer with a listing: check the endpoint, and any proxies on the way"
    if re.search(r"certificate|UnknownIssuer|TLS|tls handshake", text):
        return (
            f"TLS with {host} failed: check that the endpoint is https, and its certificate; "
            "set SSL_CERT_FILE to trust your own authority"
        )
    if re.search(r"InvalidContentType|CorruptMessage", text):
        return f"{host} does not speak TLS: s3://http://... is the address of a server without"
    if re.search(r"TimedOut|timed out|deadline", text, re.IGNORECASE):
        return f"{host} does not answer in time: check the endpoint and the network"
    if "169.254.169.254" in text or "metadata" in text:
        return f"there are no credentials, and no instance role: set {KEYS[address.provider]}"
    if re.search(r"body|decod|IncompleteMessage|ConnectionReset|closed", text):
        return f"{host} ended the connection in the middle of its answer"
    return f"{host} cannot be reached ({name})"
