"""Repositories in the cloud as a source of models, each with a local copy.

While a provider is away, the last listing stands: models go on serving, and those of which there is a complete copy can be
loaded. The log says it when that begins, again when the cause becomes another, and once when it is over.
"""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import anyio
import msgspec

from tpy import limits
from tpy.clock import Clock
from tpy.errors import InvalidArgument, Unavailable
from tpy.telemetry.exposition import MeasuredFamily
from tpy.telemetry.repositories import RepositoryUse, repository_families
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_cloud.address import CloudAddress
from tpy_cloud.bucket import Bucket, require_library
from tpy_cloud.copies import CopyKey, LocalCopies
from tpy_cloud.core.objects import ModelListing, listings_of, plan_of
from tpy_cloud.credentials import access_of
from tpy_cloud.download import Counts, Downloader
from tpy_cloud.environment import CloudEnvironment
from tpy_cloud.errors import CloudError, CloudErrorKind, about, served_on
from tpy_cloud.locks import Locks
from tpy_control.address import folder_name
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation, ModelScan
from tpy_control.sources.disk import BACKENDS_FOLDER, DiskRepositories
from tpy_control.sources.protocol import RepositorySource
from tpy_control.sources.remote_options import RemoteOptions

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_OF_CREDENTIALS: Final = (400, 401, 403)
"""The statuses of answers that other credentials may change; S3 says 400 of a token that has expired."""


class _Awaited(enum.Enum):
    """Stands for a result that is not there yet."""

    HERE = enum.auto()


class _Repository:
    """One repository."""

    def __init__(self, address: CloudAddress, bucket: Bucket) -> None:
        self.address = address
        self.bucket = bucket
        self.counts = Counts()
        self.names: tuple[str, ...] | None = None
        """The models at the last listing; None before the first."""
        self.all_objects: Mapping[str, ModelListing] | None = None
        """All models, listed since the last call of `list_models`."""
        self.known: dict[str, ModelListing] = {}
        """The newest listing of each model that is known."""
        self.away = ""
        """The reason why the provider cannot be asked now, "" if it can."""
        self.logged_cause = ""
        """The cause that the log named last, "" while the provider can be asked."""
        self.unlistable = ""
        """The reason why its folders cannot be listed, such as a key that is not a file path; known folders are still
        followed."""


class CloudSource(RepositorySource):
    """Implements RepositorySource for repositories in the cloud."""

    def __init__(self, addresses: Sequence[CloudAddress], options: RemoteOptions, clock: Clock) -> None:
        """Raises Unavailable where the client library is missing, InvalidArgument for credentials that cannot be used. Blocks:
        reads files of credentials."""
        require_library()
        self._options = options
        self._clock = clock
        self._copies = LocalCopies(options.directory, keep=options.keep, bytes_max=options.bytes_max)
        self._downloader = Downloader(self._copies, clock)
        try:
            environment = CloudEnvironment(options.environment)
            buckets = [Bucket(address, access_of(address, environment)) for address in addresses]
        except CloudError as error:
            raise Unavailable(error.text) from None
        self._repositories = {str(bucket.address): _Repository(bucket.address, bucket) for bucket in buckets}
        roots = [self._copies.root(one.address) for one in self._repositories.values()]
        self._disk = DiskRepositories(roots, check=anyio.from_thread.check_cancelled)
        self._locks = Locks[ModelLocation]()
        self._ahead: dict[ModelLocation, ModelListing | CloudError | _Awaited | None] = {}
        """The results of `prefetch` that no scan has used yet, and the locations that it has before it. Each is for one scan: a
        later one asks the provider."""
        self._being_prepared: set[CopyKey] = set()
        self._used: set[CopyKey] = set()
        self._is_open = False

    def directory(self, repository: str) -> Path:
        """The folder that stands for a repository."""
        return self._copies.root(self._repositories[repository].address)

    async def aclose(self) -> None:
        """Give the copies back."""
        with anyio.CancelScope(shield=True):  # short: files are removed
            await anyio.to_thread.run_sync(self._copies.close)

    async def list_models(self) -> Sequence[ModelLocation]:
        """The folders of all repositories. A repository that is away has those of its last listing, at the start those of which
        there is a copy; without either this raises Unavailable."""
        if not self._is_open:
            await anyio.to_thread.run_sync(self._copies.open)
            self._is_open = True
        failed: list[CloudError] = []
        async with anyio.create_task_group() as tasks:
            for repository in self._repositories.values():
                tasks.start_soon(self._list, repository, failed)
        if failed:
            raise Unavailable("; ".join(error.text for error in failed))
        return sorted(
            ModelLocation(text, name) for text, repository in self._repositories.items() for name in repository.names or ()
        )

    async def fingerprints(self, locations: Sequence[ModelLocation]) -> Sequence[DirectoryFingerprint | None]:
        """Those of the objects, by one listing of the whole repository after each `list_models`."""
        for text in {location.repository for location in locations}:
            repository = self._repositories[text]
            if repository.all_objects is None and not repository.away:
                try:
                    await self._list_all(repository)
                except CloudError as error:
                    self._left(repository, error)
        states = [self._state(location) for location in locations]
        return await anyio.to_thread.run_sync(lambda: [None if state is None else state.fingerprint for state in states])

    async def prefetch(self, locations: Sequence[ModelLocation]) -> None:
        """Download models that are about to be scanned, some at a time."""
        waiting = iter(locations)
        self._being_prepared.update(map(self._key, locations))
        # What a scan has begun with, it does itself.
        self._ahead.update({location: _Awaited.HERE for location in locations if location not in self._locks})

        async def work() -> None:
            for location in waiting:
                async with self._locks.held(location):
                    if self._ahead.get(location) is not _Awaited.HERE:
                        continue  # a scan came first
                    try:
                        self._ahead[location] = await self._update(location)
                    except CloudError as error:
                        self._ahead[location] = error

        async with anyio.create_task_group() as tasks:
            for _ in range(limits.CLOUD_MODELS_AT_ONCE_MAX):
                tasks.start_soon(work)

    async def scan(self, location: ModelLocation, *, config_name: str) -> ModelScan | None:
        """Update the copy and scan it. While the provider is away a complete copy is scanned as it is."""
        self._being_prepared.add(self._key(location))
        async with self._locks.held(location):
            try:
                listing = self._ahead.pop(location, _Awaited.HERE)
                if listing is _Awaited.HERE:
                    listing = await self._update(location)
                if isinstance(listing, CloudError):
                    raise listing
            except CloudError as error:
                return ModelScan(
                    location=location,
                    directory=self.directory(location.repository) / location.name,
                    fingerprint=DirectoryFingerprint(error=error.text),
                    error=error.text,
                )
            if listing is None:
                self._being_prepared.discard(self._key(location))
                return None
            look = functools.partial(self._look, location, listing, config_name)
            return await anyio.to_thread.run_sync(look, abandon_on_cancel=True)

    def _look(self, location: ModelLocation, listing: ModelListing, config_name: str) -> ModelScan | None:
        """Scan a copy. Blocks."""
        scan = self._disk.scan(self._local(location), config_name)
        return None if scan is None else msgspec.structs.replace(scan, location=location, fingerprint=listing.fingerprint)

    async def md5(self, location: ModelLocation, path: str) -> str | None:
        """Of the copy."""
        look = functools.partial(self._disk.md5, self._local(location), path)
        return await anyio.to_thread.run_sync(look, abandon_on_cancel=True)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Returns: providers tell nothing."""
        await anyio.lowlevel.checkpoint()

    def prepared(self, directory: Path, *, is_used: bool) -> None:
        """A copy that is used must stay until `retain` says otherwise."""
        key = CopyKey(directory.parent.parent.name, directory.name)
        if key in self._being_prepared and is_used:
            self._used.add(key)
        self._being_prepared.discard(key)

    async def retain(self, is_used: Callable[[ModelLocation], bool]) -> None:
        """Give back the copies of models that are not used, nor about to be."""
        texts = {folder_name(one.address): text for text, one in self._repositories.items()}
        self._used = {
            key
            for key in self._copies.all()
            if key.repository in texts and is_used(ModelLocation(texts[key.repository], key.name))
        }
        await self._give_back()

    async def _give_back(self) -> None:
        await anyio.to_thread.run_sync(self._copies.give_back, self._protected(), self._gone())

    def _gone(self) -> set[CopyKey]:
        """The copies of models that their repositories had no more when they answered last."""
        found: set[CopyKey] = set()
        for repository in self._repositories.values():
            names = set(repository.names or ())
            if repository.names is not None and not repository.away:
                folder = folder_name(repository.address)
                found.update(key for key in self._copies.all() if key.repository == folder and key.name not in names)
        return found

    def families(self) -> list[MeasuredFamily]:
        """The metrics of the repositories."""
        uses = [
            RepositoryUse(text, not one.away, one.counts.bytes, one.counts.files, one.counts.failures)
            for text, one in self._repositories.items()
        ]
        return repository_families(uses, self._copies.size_bytes())

    def _local(self, location: ModelLocation) -> ModelLocation:
        """The location of a copy."""
        return ModelLocation(str(self.directory(location.repository)), location.name)

    def _key(self, location: ModelLocation) -> CopyKey:
        return CopyKey(folder_name(self._repositories[location.repository].address), location.name)

    async def _list(self, repository: _Repository, failed: list[CloudError]) -> None:
        """List the models of a repository; for the first time, try again for a while."""
        deadline_ns = self._clock.now_ns() + self._options.start_ns
        pause_s = 0.5
        before: CloudError | None = None
        while True:
            try:
                folders = functools.partial(repository.bucket.folders, self._copies.some_file(repository.address))
                names = await self._ask(repository, folders, self._seconds_for_listing(repository, deadline_ns))
                repository.unlistable = ""
                break
            except CloudError as error:
                if error.kind is CloudErrorKind.BROKEN and repository.names is not None:
                    names = list(repository.names)
                    self._warn_unlistable(repository, error)
                    break
                has_copies = repository.names is not None or self._use_copies(repository, error)
                if has_copies:
                    self._left(repository, error)
                    return
                is_last = self._clock.now_ns() + pause_s * NS_PER_S >= deadline_ns
                if error.kind is not CloudErrorKind.AWAY or is_last:
                    is_cut_short = error.kind is CloudErrorKind.AWAY and self._clock.now_ns() >= deadline_ns
                    told = before if before is not None and is_cut_short else error  # which says only that there was no time
                    repository.counts.failures += 1
                    repository.away = told.text
                    failed.append(told)
                    return
                before = error
                repository.away = error.text
                if error.cause != repository.logged_cause:
                    repository.logged_cause = error.cause
                    _log.warning("%(reason)s; trying again", {"reason": error.text})
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, limits.CLOUD_START_PAUSE_S_MAX)
        self._came_back(repository)
        if not names and repository.names is None:
            _log.warning("%(address)s has no folders: is the path right?", {"address": repository.address.text})
        repository.names = tuple(name for name in names if name != BACKENDS_FOLDER)
        repository.known = {name: listing for name, listing in repository.known.items() if name in names}
        repository.all_objects = None
        if BACKENDS_FOLDER in names:
            await self._fetch_backends(repository)
        if self._gone():
            await self._give_back()

    def _seconds_for_listing(self, repository: _Repository, deadline_ns: int) -> float:
        if repository.names is not None:
            return limits.CLOUD_LIST_S_MAX
        return max(0.5, min(limits.CLOUD_LIST_S_MAX, (deadline_ns - self._clock.now_ns()) / NS_PER_S))

    def _use_copies(self, repository: _Repository, error: CloudError) -> bool:
        """Take the models of which there are copies, where the provider is away at the start; False without any."""
        names = self._copies.names(repository.address) if error.kind is CloudErrorKind.AWAY else []
        repository.names = tuple(name for name in names if name != BACKENDS_FOLDER) or None
        return repository.names is not None

    async def _fetch_backends(self, repository: _Repository) -> None:
        """Bring the python-based backends of a repository along."""
        location = ModelLocation(str(repository.address), BACKENDS_FOLDER)
        async with self._locks.held(location):
            try:
                await self._update(location)
            except CloudError as error:
                _log.error("python-based backends are not updated: %(reason)s", {"reason": error.text})

    async def _list_all(self, repository: _Repository) -> None:
        known = self._copies.some_file(repository.address)
        check = anyio.from_thread.check_cancelled

        def listings() -> dict[str, ModelListing]:
            return listings_of(repository.bucket.objects(known=known, check=check))

        try:
            found = await self._ask(repository, listings, limits.CLOUD_LIST_S_MAX)
        except CloudError as error:
            if error.kind is not CloudErrorKind.BROKEN:
                raise
            # One key that is not a file path must not hide the other models.
            repository.all_objects = {name: await self._list_one(repository, name) for name in repository.names or ()}
            return
        repository.all_objects = found
        self._came_back(repository)

    async def _list_one(self, repository: _Repository, name: str) -> ModelListing:
        """The listing of one model; empty if it is gone."""
        known = self._copies.some_file(repository.address, name)
        check = anyio.from_thread.check_cancelled

        def listing() -> ModelListing:
            objects = repository.bucket.objects(name, known=known, objects_max=limits.MODEL_FILES_MAX, check=check)
            return listings_of(objects).get(name, ModelListing())

        try:
            return await self._ask(repository, listing, limits.CLOUD_LIST_S_MAX)
        except CloudError as error:
            if error.kind is not CloudErrorKind.BROKEN:
                raise
            return ModelListing(error=error.text)

    async def _ask(self, repository: _Repository, work: Callable[[], _T], seconds: float) -> _T:
        """Ask the provider in a thread; one that does not answer in time is left behind. Where it refuses the credentials, and
        there are others in their file by now, it is asked with those."""
        try:
            with anyio.fail_after(seconds):
                try:
                    return await self._downloader.run(work)
                except CloudError as error:
                    if error.status not in _OF_CREDENTIALS or not await self._renewed(repository):
                        raise
                    return await self._downloader.run(work)
        except TimeoutError:
            cause = f"no answer within {seconds:.3g} s: check the endpoint and the network"
            raise about(repository.address, cause, CloudErrorKind.AWAY) from None

    async def _renewed(self, repository: _Repository) -> bool:
        """Read the credentials again. Returns True if they are others."""

        def read() -> bool:
            return repository.bucket.renew(access_of(repository.address, self._options.environment))

        try:
            is_other = await anyio.to_thread.run_sync(read)
        except (InvalidArgument, CloudError):  # such as a file that is being written; what the provider said is the error
            return False
        if is_other:
            _log.info("credentials of %(address)s were read again", {"address": repository.address.text})
        return is_other

    async def _update(self, location: ModelLocation) -> ModelListing | None:
        """Make the copy of a model what the repository has; None if the model is not there. Its lock is held. Raises
        CloudError."""
        repository = self._repositories[location.repository]
        if (is_used := self._key(location) in self._used) and repository.away:
            raise served_on(CloudError(repository.away, CloudErrorKind.AWAY))
        if repository.away and (copied := await self._listing_of_copy(location)) is not None:
            return copied
        listing: ModelListing | None = None
        try:
            for left in reversed(range(limits.CLOUD_TRIES_MAX)):
                listing = await self._list_settled(repository, location.name)
                if listing.error:
                    key = repository.address.key(location.name)
                    raise about(repository.address, listing.error, CloudErrorKind.REFUSED, key=key)
                repository.known[location.name] = listing
                if not listing.files and not listing.folders:
                    return None
                try:
                    await self._fetch(repository, location, listing)
                    return listing
                except CloudError as error:
                    if error.kind is not CloudErrorKind.CHANGED or not left:
                        raise
        except CloudError as error:
            repository.counts.failures += 1
            if error.kind is not CloudErrorKind.AWAY:
                raise
            if is_used:
                if listing is None:
                    self._left(repository, error)
                raise served_on(error) from None
            if (known := await self._listing_of_copy(location)) is None:
                raise
            self._left(repository, error)
            return known
        return None

    async def _list_settled(self, repository: _Repository, name: str) -> ModelListing:
        """The listing of one model, when its newest object is as old as `settle_ns`: an upload may be going on. By the clocks of
        the provider and of this machine; a difference between them costs no more than `settle_ns`."""
        listing = await self._list_one(repository, name)
        is_copy, newest_ns = await anyio.to_thread.run_sync(
            lambda: (self._copies.is_copy_of(repository.address, name, listing), listing.newest_ns)
        )
        young_ns = newest_ns + self._options.settle_ns - self._clock.wall_ms() * NS_PER_MS
        if not listing.error and young_ns > 0 and not is_copy:
            await anyio.sleep(min(young_ns, self._options.settle_ns) / NS_PER_S)
            listing = await self._list_one(repository, name)
        return listing

    async def _require_unchanged(self, repository: _Repository, name: str, listing: ModelListing) -> None:
        """Raises CHANGED if a model that was downloaded has other objects now: then it is being uploaded."""
        now = await self._list_one(repository, name)
        if await anyio.to_thread.run_sync(lambda: now.fingerprint != listing.fingerprint):
            cause = "objects were written or removed during the download: try again when the upload is complete"
            raise about(repository.address, cause, CloudErrorKind.CHANGED, key=repository.address.key(name))

    async def _listing_of_copy(self, location: ModelLocation) -> ModelListing | None:
        """The listing that the complete copy of a model is of, which then counts as known; None without one."""
        repository = self._repositories[location.repository]
        find = functools.partial(self._copies.listing, repository.address, location.name)
        found = await anyio.to_thread.run_sync(find)
        if found is not None:
            repository.known[location.name] = found
        return found

    async def _fetch(self, repository: _Repository, location: ModelLocation, listing: ModelListing) -> None:
        """Bring a copy up to date."""
        address, name = repository.address, location.name
        try:
            plan, is_complete = await anyio.to_thread.run_sync(
                lambda: (plan_of(listing, self._copies.have(address, name)), self._copies.is_copy_of(address, name, listing))
            )
            if plan.fetch or plan.remove or not is_complete:
                protected = self._protected()
                room = functools.partial(self._copies.make_room, address, name, listing.size_bytes, protected)
                for removed in await anyio.to_thread.run_sync(room):
                    _log.info("the copy of model '%(model)s' makes room for others", {"model": removed})
                check = functools.partial(self._require_unchanged, repository, name, listing)
                await self._downloader.fetch(repository.bucket, name, listing, plan, repository.counts, check)
            await anyio.to_thread.run_sync(functools.partial(self._copies.use, address, name))
        except OSError as error:
            cause = f"the local copy cannot be written: {error.strerror or error}"
            raise about(address, cause, CloudErrorKind.BROKEN, key=address.key(name)) from None
        self._came_back(repository)

    def _protected(self) -> set[CopyKey]:
        """The copies that must stay: of models that are used, about to be, and of backends."""
        backends = {CopyKey(folder_name(one.address), BACKENDS_FOLDER) for one in self._repositories.values()}
        return self._used | self._being_prepared | backends

    def _state(self, location: ModelLocation) -> ModelListing | None:
        """The objects of a model as far as they are known, or why they are not; None if the model has no objects."""
        repository = self._repositories[location.repository]
        if repository.all_objects is not None and not (repository.away and location.name in repository.known):
            listing = repository.all_objects.get(location.name)
            return None if listing is None or not (listing.files or listing.folders or listing.error) else listing
        return repository.known.get(location.name, ModelListing(error=repository.away))

    def _warn_unlistable(self, repository: _Repository, error: CloudError) -> None:
        """Folders cannot be listed; said once."""
        if not repository.unlistable:
            _log.warning("new models are not detected; known models are still followed: %(reason)s", {"reason": error.text})
        repository.unlistable = error.text

    def _left(self, repository: _Repository, error: CloudError) -> None:
        """The provider cannot be asked; said once for each cause."""
        if error.cause != repository.logged_cause:
            repository.logged_cause = error.cause
            _log.warning("model repository cannot be read; served models stay loaded: %(reason)s", {"reason": error.text})
        repository.counts.failures += 1
        repository.away = error.text

    def _came_back(self, repository: _Repository) -> None:
        if repository.away:
            repository.away = repository.logged_cause = ""
            _log.info("model repository %(address)s can be read again", {"address": repository.address.text})
