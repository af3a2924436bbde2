"""Downloads what a local copy lacks, in parts and in parallel."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio

from tpy import limits
from tpy.clock import Clock
from tpy.units import MIB, NS_PER_S
from tpy_cloud.bucket import Bucket
from tpy_cloud.copies import LocalCopies, check_part
from tpy_cloud.core.objects import CloudObject, CopyPlan, ModelListing
from tpy_cloud.errors import CloudError, CloudErrorKind, about

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_MD5 = re.compile(r"([0-9a-f]{32})")
"""The etag of an object that was stored in one piece. That of one stored in parts ends in their number."""


class _Block(NamedTuple):
    """A part of a file: file `number` of the plan, from byte `start` to `end`."""

    number: int
    file: CloudObject
    start: int
    end: int


class Counts:
    """Counts what has been downloaded since the start of the server, of one repository."""

    def __init__(self) -> None:
        self.bytes = 0
        self.files = 0
        self.failures = 0


class Downloader:
    """Downloads from all repositories; at most CLOUD_REQUESTS_MAX requests at a time."""

    def __init__(self, copies: LocalCopies, clock: Clock) -> None:
        self._copies = copies
        self._clock = clock
        self._threads = anyio.CapacityLimiter(limits.CLOUD_REQUESTS_MAX)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Calls `work`, which asks a provider, in a thread that is left behind on cancellation."""
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)

    async def fetch(
        self,
        bucket: Bucket,
        name: str,
        listing: ModelListing,
        plan: CopyPlan,
        counts: Counts,
        check: Callable[[], Awaitable[None]],
    ) -> None:
        """Download, check and commit. `check` is called after downloads, and raises CloudError if they are not to be used.
        Raises CloudError and OSError; the copy is then as it was."""
        make = functools.partial(self._copies.new_parts, bucket.address, name)
        download = _Download(self, bucket, name, plan, await anyio.to_thread.run_sync(make), counts)
        try:
            progress = _Progress(self._clock, bucket, name, plan)
            await download.blocks(progress)
            digests = {file.path: await download.checked(number, file) for number, file in enumerate(plan.fetch)}
            if plan.fetch:
                await check()
            commit = functools.partial(
                self._copies.commit, bucket.address, name, listing=listing, plan=plan, parts=download.parts, digests=digests
            )
            await anyio.to_thread.run_sync(commit)
            progress.done()
        finally:
            with anyio.CancelScope(shield=True):  # short: files are removed
                discard = functools.partial(self._copies.discard_parts, bucket.address, name, download.parts)
                await anyio.to_thread.run_sync(discard)


class _Download:
    """One download of what a copy lacks."""

    def __init__(self, downloader: Downloader, bucket: Bucket, name: str, plan: CopyPlan, parts: Path, counts: Counts) -> None:
        self.parts = parts
        self._run = downloader.run
        self._bucket = bucket
        self._name = name
        self._plan = plan
        self._counts = counts

    async def blocks(self, progress: _Progress) -> None:
        """Download all files, in parts. Raises the first CloudError or OSError."""
        todo = (block for number, file in enumerate(self._plan.fetch) for block in _blocks(number, file))
        failed: list[Exception] = []

        async def work() -> None:
            try:
                for block in todo:
                    await self._fetch_block(block)
                    progress.add(block.end - block.start)
            except (CloudError, OSError) as error:
                failed.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(limits.CLOUD_REQUESTS_MAX):
                tasks.start_soon(work)
        if failed:
            raise failed[0]

    async def checked(self, number: int, file: CloudObject) -> str:
        """The digest of a download, which is repeated where its checksum is not that of the object."""
        wanted = _MD5.fullmatch(file.etag)
        found = ""
        for left in reversed(range(limits.CLOUD_TRIES_MAX)):
            found, digest = await anyio.to_thread.run_sync(check_part, self.parts / str(number), file.size_bytes)
            if wanted is None or wanted[1] == found:
                self._counts.files += 1
                return digest
            if not await self._run(functools.partial(self._bucket.md5_is_certain, f"{self._name}/{file.path}")):
                self._counts.files += 1
                return digest
            if left:
                for block in _blocks(number, file):
                    await self._fetch_block(block)
        cause = f"the MD5 of the download is {found}, that of the object {wanted[1] if wanted else ''}; the download is discarded"
        key = self._bucket.address.key(f"{self._name}/{file.path}")
        raise about(self._bucket.address, cause, CloudErrorKind.BROKEN, key=key)

    async def _fetch_block(self, block: _Block) -> None:
        """Download a part, again where it came truncated."""
        for left in reversed(range(limits.CLOUD_TRIES_MAX)):
            try:
                await self._run(functools.partial(self._fetch, block))
                self._counts.bytes += block.end - block.start
                return
            except CloudError as error:
                if not left or error.kind is not CloudErrorKind.BROKEN:
                    raise

    def _fetch(self, block: _Block) -> None:
        path = f"{self._name}/{block.file.path}"
        content = b"" if block.start == block.end else self._bucket.read(path, block.file.etag, block.start, block.end)
        descriptor = os.open(self.parts / str(block.number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.pwrite(descriptor, view, block.end - len(view)) :]
        finally:
            os.close(descriptor)


def _blocks(number: int, file: CloudObject) -> Iterator[_Block]:
    """The parts of a file; one without content for an empty file."""
    for start in range(0, max(1, file.size_bytes), limits.CLOUD_BLOCK_BYTES):
        yield _Block(number, file, start, min(start + limits.CLOUD_BLOCK_BYTES, file.size_bytes))


class _Progress:
    """Lines of the log about one download: at its start, now and then, and at its end."""

    def __init__(self, clock: Clock, bucket: Bucket, name: str, plan: CopyPlan) -> None:
        self._clock = clock
        self._about = {"model": name, "repository": str(bucket.address)}
        self._bytes = 0
        self._bytes_max = plan.fetch_bytes
        self._files = len(plan.fetch)
        self._started_ns = self._said_ns = clock.now_ns()
        if plan.fetch:
            _log.info(
                "model '%(model)s': downloading %(files)d files, %(size)s, from %(repository)s",
                {**self._about, "files": self._files, "size": _shown(self._bytes_max)},
            )

    def add(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        now_ns = self._clock.now_ns()
        if now_ns - self._said_ns >= limits.CLOUD_PROGRESS_S * NS_PER_S and self._bytes < self._bytes_max:
            self._said_ns = now_ns
            _log.info(
                "model '%(model)s': %(percent)d %% of %(size)s downloaded",
                {**self._about, "percent": 100 * self._bytes // self._bytes_max, "size": _shown(self._bytes_max)},
            )

    def done(self) -> None:
        if self._files:
            seconds = (self._clock.now_ns() - self._started_ns) / NS_PER_S
            _log.info(
                "model '%(model)s': downloaded %(size)s in %(seconds).1f s",
                {**self._about, "size": _shown(self._bytes_max), "seconds": seconds},
            )


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB // 10 else f"{size_bytes} bytes"
