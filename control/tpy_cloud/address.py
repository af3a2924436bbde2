"""Addresses of repositories in the cloud, in Triton's notation."""

from __future__ import annotations

import enum
import re
from typing import Final

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy_control.address import RemoteAddress


class Provider(enum.Enum):
    """The scheme of an address in the cloud."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "as"
    OSS = "oss"


class CloudAddress(RemoteAddress, frozen=True, kw_only=True):
    """A repository in the cloud. `bucket` is the bucket or container; `prefix` the path in it, without slashes around it;
    `endpoint` the URL of a server that the address names, "" for the provider's own; `account` is Azure's."""

    provider: Provider
    bucket: str
    prefix: str = ""
    endpoint: str = ""
    account: str = ""

    @property
    def readable(self) -> str:
        """See RemoteAddress."""
        return f"{self.bucket}-{self.prefix}"

    def key(self, path: str) -> str:
        """The key of a path inside the repository."""
        return f"{self.prefix}/{path}" if self.prefix and path else self.prefix or path


_FORMS: Final = {
    Provider.S3: "s3://BUCKET/PATH, s3://HOST:PORT/BUCKET/PATH or s3://https://HOST:PORT/BUCKET/PATH",
    Provider.GCS: "gs://BUCKET/PATH",
    Provider.AZURE: "as://ACCOUNT/CONTAINER/PATH",
    Provider.OSS: "oss://BUCKET/PATH or oss://BUCKET.ENDPOINT/PATH",
}
_BUCKET: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}"
_S3_SERVER: Final = re.compile(r"(https?://)?([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
_OSS_ENDPOINT: Final = re.compile(r"([a-z0-9-]+)\.((?:oss|s3\.oss)-[a-z0-9-]+(?:\.[a-z0-9-]+)+)")
_AZURE_HOST: Final = ".blob.core.windows.net"


def parse_cloud_address(text: str) -> CloudAddress:
    """The address that a text with one of the schemes means. Raises InvalidArgument for one without a bucket."""
    scheme, _, rest = text.partition("://")
    provider = Provider(scheme)
    if provider is Provider.S3:
        endpoint, path = _s3_server(rest)
    else:
        endpoint, path = "", rest
    parts = [part for part in path.split("/") if part]
    account = ""
    if provider is Provider.AZURE and parts:
        account = parts.pop(0).removesuffix(_AZURE_HOST)
        parts = parts if re.fullmatch(r"[a-z0-9]{3,24}", account) else []
    bucket = parts[0] if parts else ""
    if provider is Provider.OSS and (found := _OSS_ENDPOINT.fullmatch(bucket)) is not None:
        bucket, endpoint = found[1], f"https://{found[2]}"
    if not re.fullmatch(_BUCKET, bucket) or ".." in parts or "." in parts:
        raise InvalidArgument(f"--model-repository {echo(text)}: expected {_FORMS[provider]}")
    return CloudAddress(
        text=text, provider=provider, bucket=bucket, prefix="/".join(parts[1:]), endpoint=endpoint, account=account
    )


def _s3_server(rest: str) -> tuple[str, str]:
    """The URL of the server that an address names, "" for AWS's own, and the path behind it. A server has a port, a scheme, or
    both; without a scheme it speaks HTTP, as in Triton."""
    found = _S3_SERVER.match(rest)
    if found is None or not (found[1] or found[3]) or rest[found.end() : found.end() + 1] not in ("/", ""):
        return "", rest
    return f"{found[1] or 'http://'}{found[2]}{found[3] or ''}", rest[found.end() :]
