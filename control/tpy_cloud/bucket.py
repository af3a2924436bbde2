"""One bucket or container, as far as a repository needs it: lists folders and objects, and reads parts of objects. Blocking."""

from __future__ import annotations

import contextlib
import datetime
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpy import limits
from tpy.errors import Unavailable
from tpy.units import NS_PER_S
from tpy_cloud.address import CloudAddress, Provider
from tpy_cloud.core.objects import CloudObject
from tpy_cloud.credentials import KeyPair, RepositoryAccess
from tpy_cloud.errors import KEYS, CloudError, CloudErrorKind, about, translate
from tpy_control.core.scan import is_ignored

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import AzureStore, GCSStore, S3Store

_INSTALL = "repositories in the cloud need the package obstore, which comes with tpy's extra 'cloud': pip install obstore"


def require_library() -> None:
    """Raises Unavailable, with what to install, where the client library is missing."""
    try:
        import obstore.store  # noqa: F401
    except ImportError:
        raise Unavailable(_INSTALL) from None


class Bucket:
    """Reads one repository. Every method may be called from any thread, and raises CloudError."""

    def __init__(self, address: CloudAddress, access: RepositoryAccess) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._use(access)

    def renew(self, access: RepositoryAccess) -> bool:
        """Take credentials that were read again. Returns False if they have not changed."""
        with self._lock:
            if access == self._access:
                return False
            self._use(access)
        return True

    def _use(self, access: RepositoryAccess) -> None:
        self._store = _open(self.address, access, anonymous=access.may_be_public)
        self._access = access
        self._anonymous: bool | None = None if access.may_be_public else False
        """None: not known yet whether everybody may read."""

    def folders(self, known: str = "") -> list[str]:
        """The names of the folders in the repository, sorted; hidden ones are left out. An empty listing is believed only if
        `known`, the path of a file that was there, is gone, too: AWAY otherwise. Whatever answers 200 may be no provider."""
        self._settle_credentials()
        with self._translated():
            found = self._store.list_with_delimiter(self.address.prefix or None)
        names = (path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])
        folders = sorted(name for name in names if not name.startswith("."))
        if not folders:
            self._require_gone(known)
        return folders

    def objects(
        self,
        folder: str = "",
        *,
        known: str = "",
        objects_max: int = limits.CLOUD_OBJECTS_MAX,
        check: Callable[[], None] = lambda: None,
    ) -> list[CloudObject]:
        """The objects of a folder of the repository, or of all of it; paths are relative to the repository. REFUSED for more than
        `objects_max`; `known` as in `folders`. `check` is called again and again, and may raise."""
        prefix = self.address.key(folder)
        start = len(self.address.prefix) + 1 if self.address.prefix else 0
        found: list[CloudObject] = []
        self._settle_credentials()
        with self._translated():
            for chunk in self._store.list(f"{prefix}/" if prefix else None, chunk_size=1000):
                check()
                found.extend(
                    CloudObject(
                        path=one["path"][start:],
                        size_bytes=one["size"],
                        etag=_bare(one["e_tag"]),
                        modified_ns=int(one["last_modified"].timestamp() * NS_PER_S),
                    )
                    for one in chunk
                )
                if len(found) > objects_max:
                    raise about(self.address, f"there are more than {objects_max} objects", CloudErrorKind.REFUSED, key=prefix)
        if not found:
            self._require_gone(known)
        return [one for one in found if not any(is_ignored(part) for part in one.path.split("/"))]

    def _require_gone(self, path: str) -> None:
        """Raise AWAY unless there is no object of this path any more, or the path is ""."""
        if not path:
            return
        key = self.address.key(path)
        try:
            with self._translated(key):
                self._store.head(key)
        except CloudError as error:
            if error.kind is CloudErrorKind.CHANGED:
                return
        cause = "the listing is empty, but the objects still exist: check the endpoint, and any proxies on the way"
        raise about(self.address, cause, CloudErrorKind.AWAY, key=key)

    def read(self, path: str, etag: str, start: int, end: int) -> bytes:
        """The bytes from `start` to `end` of an object that has this etag ("": the provider tells none); CHANGED for another
        etag, BROKEN for fewer bytes."""
        key = self.address.key(path)
        with self._translated(key):
            options: GetOptions = {"range": (start, end)}
            if etag:
                options["if_match"] = f'"{etag}"'
            result = self._store.get(key, options=options)
            if etag and _bare(result.meta["e_tag"]) != etag:
                raise about(self.address, "the object has changed meanwhile", CloudErrorKind.CHANGED, key=key)
            content = bytes(result.bytes())
        if len(content) != end - start:
            cause = f"{len(content)} of {end - start} bytes came: the download is truncated"
            raise about(self.address, cause, CloudErrorKind.BROKEN, key=key)
        return content

    def md5_is_certain(self, path: str) -> bool:
        """Returns True if an etag that looks like an MD5 must be that of the object. The etag of an object that is encrypted with
        a KMS or customer key looks the same but is not an MD5; a header says so."""
        if self.address.provider is not Provider.S3 or self._anonymous:
            return True
        import obstore
        from obstore.exceptions import BaseError

        try:
            url = obstore.sign(self._store, "HEAD", self.address.key(path), datetime.timedelta(minutes=5))
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=limits.CLOUD_READ_S_MAX) as answer:
                encryption = answer.headers.get("x-amz-server-side-encryption", "")
                customers = answer.headers.get("x-amz-server-side-encryption-customer-algorithm", "")
        except (OSError, ValueError, BaseError):
            return True
        return not encryption.startswith("aws:kms") and not customers

    def _settle_credentials(self) -> None:
        """Without configured credentials the repository may be public, or the machine may have an identity,
        which takes time to find out: asks without credentials first."""
        with self._lock:
            if self._anonymous is not None:
                return
            try:
                with self._translated(anonymous=True):
                    self._store.list_with_delimiter(self.address.prefix or None)
            except CloudError as refused:
                if refused.status not in (401, 403):
                    raise
                with contextlib.suppress(CloudError), self._translated():
                    _open(self.address, self._access, retries=1, connect_s=1).list_with_delimiter(self.address.prefix or None)
                    self._store = _open(self.address, self._access)
                    self._anonymous = False
                    return
                raise
            self._anonymous = True

    @contextmanager
    def _translated(self, key: str = "", *, anonymous: bool = False) -> Iterator[None]:
        """Raises CloudError for all that the client library raises."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise translate(self.address, error, key=key, source=self._access.source, anonymous=anonymous) from None


def _bare(etag: str | None) -> str:
    """An etag without quotes: Azure and Google list it without, and send it with them."""
    return (etag or "").removeprefix("W/").strip('"')


def _open(
    address: CloudAddress,
    access: RepositoryAccess,
    *,
    anonymous: bool = False,
    retries: int = limits.CLOUD_RETRIES_MAX,
    connect_s: int = limits.CLOUD_CONNECT_S_MAX,
) -> S3Store | GCSStore | AzureStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    settings: dict[str, Any] = dict(access.settings)
    if anonymous:
        settings["skip_signature"] = True
    common: dict[str, Any] = {
        "client_options": {
            # Of an endpoint that the operator names so. The library follows redirects: from HTTPS they must not lead out of it.
            "allow_http": any(str(value).startswith("http://") for value in access.settings.values()),
            "connect_timeout": datetime.timedelta(seconds=connect_s),
            "read_timeout": datetime.timedelta(seconds=limits.CLOUD_READ_S_MAX),
            "timeout": datetime.timedelta(seconds=limits.CLOUD_REQUEST_S_MAX),
        },
        "retry_config": {
            "max_retries": retries,
            "retry_timeout": datetime.timedelta(seconds=limits.CLOUD_RETRY_S_MAX),
        },
    }
    try:
        if address.provider is Provider.GCS:
            return GCSStore(address.bucket, config=settings, **common)  # type: ignore[arg-type]  # keys are those of GCSConfig
        if address.provider is Provider.AZURE:
            return AzureStore(config=settings, **common)  # type: ignore[arg-type]  # keys are those of AzureConfig
        if access.keys is not None:
            common["credential_provider"] = _Keys(access.keys)
        return S3Store(config=settings, **common)  # type: ignore[arg-type]  # keys are those of S3Config
    except Exception as error:  # the library has no one class for settings that it cannot use
        wanted = f"{KEYS[address.provider]} (from {access.source})"
        cause = f"the client cannot be set up ({type(error).__name__}): check the address, the endpoint and {wanted}"
        raise about(address, cause, CloudErrorKind.REFUSED) from None


class _Keys:
    """Gives the client library the keys, so that it takes none from the environment in addition."""

    def __init__(self, keys: KeyPair) -> None:
        self._keys = keys

    def __call__(self) -> dict[str, str | None]:
        keys = self._keys
        return {
            "access_key_id": keys.key_id,
            "secret_access_key": keys.secret_key,
            "token": keys.session_token,
            "expires_at": None,
        }
