"""Credentials of repositories in the cloud: from environment variables, or from a file in Triton's format.

The file that TRITON_CLOUD_CREDENTIAL_PATH names replaces the environment. Of its entries the one with the longest prefix of the
repository's address counts; "" is a prefix of all.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.files import read_file
from tpy_cloud.address import CloudAddress, Provider
from tpy_cloud.environment import CREDENTIAL_FILE
from tpy_cloud.errors import ENVIRONMENT

_REGION_DEFAULT: Final = "us-east-1"
_FORMAT: Final = (
    '{"s3": {"PREFIX": {"key_id": "", "secret_key": "", "region": "", "session_token": "", "profile": ""}}, '
    '"gs": {"PREFIX": "FILE"}, "as": {"PREFIX": {"account_str": "", "account_key": ""}}}'
)


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A key of S3's protocol."""

    key_id: str
    secret_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return "KeyPair(***)"


class RepositoryAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The access to a repository. `settings` are those of the client library; `keys` stands for credentials that it is not to
    find itself; `may_be_public`: no credentials are configured, so the repository may be one that everybody can read. `source`
    says in error texts where the credentials are from; `changed_ns` is the time of the last change of a file that the client
    library reads."""

    settings: Mapping[str, str | bool]
    keys: KeyPair | None = None
    may_be_public: bool = False
    source: str = ENVIRONMENT
    changed_ns: int = 0

    def __repr__(self) -> str:
        return f"RepositoryAccess(source={self.source!r})"


class _S3Entry(msgspec.Struct, frozen=True):
    secret_key: str = ""
    key_id: str = ""
    region: str = ""
    session_token: str = ""
    profile: str = ""


class _AzureEntry(msgspec.Struct, frozen=True):
    account_str: str = ""
    account_key: str = ""


class _CredentialFile(msgspec.Struct, frozen=True):
    gs: dict[str, str] = {}
    s3: dict[str, _S3Entry] = {}
    azure: dict[str, _AzureEntry] = msgspec.field(default_factory=dict, name="as")


_decode_file = msgspec.json.Decoder(_CredentialFile).decode


_Entry = TypeVar("_Entry")


def access_of(address: CloudAddress, environment: Mapping[str, str]) -> RepositoryAccess:
    """The access to a repository. Blocks: reads files of credentials. Raises InvalidArgument for one that cannot be used; its
    text has nothing of what is in it."""
    file = _read(environment[CREDENTIAL_FILE]) if environment.get(CREDENTIAL_FILE) else None
    source = f"{CREDENTIAL_FILE}={environment.get(CREDENTIAL_FILE)}" if file is not None else ENVIRONMENT
    if address.provider is Provider.GCS:
        path = environment.get("GOOGLE_APPLICATION_CREDENTIALS", "") if file is None else _match(address, file.gs)
        return _google(path, environment, source)
    if address.provider is Provider.AZURE:
        entry = None if file is None else _match(address, file.azure)
        return _azure(address, entry, environment, source)
    if address.provider is Provider.OSS:
        return _oss(address, environment)
    return _s3(address, None if file is None else _match(address, file.s3), environment, source)


def _read(path: str) -> _CredentialFile:
    try:
        content = read_file(Path(path), bytes_max=limits.CLOUD_CREDENTIAL_BYTES_MAX)
        return _decode_file(content)
    except OSError as error:
        raise InvalidArgument(f"{CREDENTIAL_FILE}={path} cannot be read: {error.strerror or error}") from None
    except msgspec.ValidationError as error:  # names the place, never the value
        raise InvalidArgument(f"{CREDENTIAL_FILE}={path}: {error}; expected {_FORMAT}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidArgument(f"{CREDENTIAL_FILE}={path} is not JSON; expected {_FORMAT}") from None


def _match(address: CloudAddress, entries: Mapping[str, _Entry]) -> _Entry:
    """The entry with the longest prefix."""
    fitting = [prefix for prefix in entries if address.text.startswith(prefix)]
    if not fitting:
        raise InvalidArgument(
            f"Cannot match credential for path {address}: {CREDENTIAL_FILE} has no entry of '{address.provider.value}' whose "
            'name is a prefix of that path; "" fits all'
        )
    return entries[max(fitting, key=len)]


def _s3(address: CloudAddress, entry: _S3Entry | None, environment: Mapping[str, str], source: str) -> RepositoryAccess:
    region, token, profile = _REGION_DEFAULT, "", ""
    if entry is None:
        key_id, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
        token = environment.get("AWS_SESSION_TOKEN", "")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", "")
        profile = environment.get("AWS_PROFILE", "")
    else:
        key_id, secret, token, region, profile = (
            entry.key_id,
            entry.secret_key,
            entry.session_token,
            entry.region,
            entry.profile,
        )
    keys = KeyPair(key_id=key_id, secret_key=secret, session_token=token or None) if key_id and secret else None
    if keys is None:
        found, region_of_profile = _profile(profile, environment)
        keys, region = found, region or region_of_profile
        if found is not None:
            source = f"profile '{profile or 'default'}'"
    settings: dict[str, str | bool] = {"bucket": address.bucket, "region": region or _REGION_DEFAULT}
    endpoint = address.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        settings["aws_endpoint_url_s3"] = endpoint.rstrip("/")
    brings_own = any(
        environment.get(name)
        for name in (
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        )
    )
    return RepositoryAccess(settings=settings, keys=keys, may_be_public=keys is None and not brings_own, source=source)


def _profile(name: str, environment: Mapping[str, str]) -> tuple[KeyPair | None, str]:
    """The keys and the region of a profile in the files of AWS's tools; of "", the default one, also none. Raises InvalidArgument
    for a named one that is not there, or has no keys."""
    home = Path(environment.get("HOME", "/root")) / ".aws"
    credentials = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    config = Path(environment.get("AWS_CONFIG_FILE") or home / "config")
    values: dict[str, str] = {}
    for path, section in (
        (config, f"profile {name}" if name and name != "default" else "default"),
        (credentials, name or "default"),
    ):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(read_file(path, bytes_max=limits.CLOUD_CREDENTIAL_BYTES_MAX).decode())
        except OSError:
            continue
        except (configparser.Error, UnicodeDecodeError):
            raise InvalidArgument(f"{path} cannot be read as a file of AWS profiles") from None
        if parser.has_section(section):
            values.update(parser.items(section))
    key_id, secret = values.get("aws_access_key_id", ""), values.get("aws_secret_access_key", "")
    if key_id and secret:
        pair = KeyPair(key_id=key_id, secret_key=secret, session_token=values.get("aws_session_token") or None)
        return pair, values.get("region", "")
    if name:
        raise InvalidArgument(
            f"AWS profile '{name}' has no aws_access_key_id and aws_secret_access_key in {credentials} or {config}; "
            "profiles that assume a role or sign on in a browser are not supported: set AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
        )
    return None, values.get("region", "")


def _oss(address: CloudAddress, environment: Mapping[str, str]) -> RepositoryAccess:
    key_id = environment.get("OSS_ACCESS_KEY_ID") or environment.get("ALIBABA_CLOUD_ACCESS_KEY_ID", "")
    secret = environment.get("OSS_ACCESS_KEY_SECRET") or environment.get("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "")
    token = environment.get("OSS_SESSION_TOKEN") or environment.get("ALIBABA_CLOUD_SECURITY_TOKEN", "")
    region = environment.get("OSS_REGION", "").removeprefix("oss-")
    endpoint = address.endpoint or environment.get("OSS_ENDPOINT", "") or (f"oss-{region}.aliyuncs.com" if region else "")
    if not endpoint:
        raise InvalidArgument(
            f"{address}: OSS_ENDPOINT or OSS_REGION must say where the bucket is, or the address: "
            f"oss://{address.bucket}.oss-REGION.aliyuncs.com/{address.prefix}"
        )
    scheme, _, host = endpoint.rstrip("/").rpartition("://")
    settings: dict[str, str | bool] = {"bucket": address.bucket, "region": region or _oss_region(host)}
    if host.endswith(".aliyuncs.com"):  # answers under the bucket's own name only
        host, settings["virtual_hosted_style_request"] = f"{address.bucket}.{host}", True
    settings["aws_endpoint_url_s3"] = f"{scheme or 'https'}://{host}"
    keys = KeyPair(key_id=key_id, secret_key=secret, session_token=token or None) if key_id and secret else None
    return RepositoryAccess(settings=settings, keys=keys, may_be_public=keys is None)


def _oss_region(host: str) -> str:
    """The region in the name of an OSS endpoint, such as oss-cn-hangzhou-internal.aliyuncs.com."""
    first = host.removeprefix("s3.").partition(".")[0].removeprefix("oss-").removesuffix("-internal")
    return first if host.endswith(".aliyuncs.com") else _REGION_DEFAULT


def _google(path: str, environment: Mapping[str, str], source: str) -> RepositoryAccess:
    settings: dict[str, str | bool] = {}
    changed_ns = 0
    if path:
        try:
            changed_ns = Path(path).stat().st_mtime_ns
        except OSError:
            raise InvalidArgument(f"the Google credentials file '{path}' ({source}) does not exist") from None
        settings["application_credentials"] = path
    emulator = environment.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        settings["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
        settings["skip_signature"] = not path
    source = f"the file {path}" if path else source
    return RepositoryAccess(settings=settings, may_be_public=not path and not emulator, source=source, changed_ns=changed_ns)


def _azure(address: CloudAddress, entry: _AzureEntry | None, environment: Mapping[str, str], source: str) -> RepositoryAccess:
    key = environment.get("AZURE_STORAGE_KEY", "") if entry is None else entry.account_key
    account = (environment.get("AZURE_STORAGE_ACCOUNT", "") if entry is None else entry.account_str) or address.account
    settings: dict[str, str | bool] = {"account_name": account, "container_name": address.bucket}
    endpoint = environment.get("AZURE_STORAGE_ENDPOINT", "")
    if endpoint:
        settings["endpoint"] = endpoint.rstrip("/")
    kind = environment.get("AZURE_STORAGE_AUTH_TYPE", "")
    if key:
        settings["account_key"] = key
    elif kind == "managed_identity":
        settings["credential_type"] = kind
        if environment.get("AZURE_STORAGE_CLIENT_ID"):
            settings["client_id"] = environment["AZURE_STORAGE_CLIENT_ID"]
    elif kind not in ("", "default"):
        raise InvalidArgument(f"AZURE_STORAGE_AUTH_TYPE: expected default or managed_identity, got '{kind}'")
    elif sas := environment.get("AZURE_STORAGE_SAS_TOKEN"):
        settings["sas_key"] = sas
    is_configured = len(settings) > (3 if endpoint else 2) or kind or any(name.startswith("AZURE_CLIENT") for name in environment)
    return RepositoryAccess(settings=settings, may_be_public=not is_configured, source=source)
