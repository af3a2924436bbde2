"""Whole repositories in the cloud as folders, for programs that look at them once."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio

from tpy.clock import SystemClock
from tpy.errors import Unavailable
from tpy_control.address import RemoteAddress, RepositoryAddress
from tpy_control.sources.remote_options import HiddenEnvironment, RemoteOptions
from tpy_control.sources.several import open_source


@contextmanager
def as_folders(repositories: Sequence[RepositoryAddress], environment: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """The folders that stand for repositories, by their addresses. Those in the cloud are downloaded, and removed at the end.
    Blocks. Raises Unavailable for a repository or a model that cannot be read, InvalidArgument for credentials."""
    addresses = [one for one in repositories if isinstance(one, RemoteAddress)]
    folders = {str(one): one for one in repositories if isinstance(one, Path)}
    scratch = Path(tempfile.mkdtemp(prefix="tpy-repository-"))
    try:
        options = RemoteOptions(directory=scratch, keep=True, environment=HiddenEnvironment(environment))
        if addresses:
            anyio.run(functools.partial(_download, addresses, options), backend="trio")
        found = {str(one): options.folder_of(one) for one in addresses}
        yield {str(one): found.get(str(one)) or folders[str(one)] for one in repositories}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


async def _download(addresses: Sequence[RemoteAddress], options: RemoteOptions) -> None:
    source = open_source(addresses, options, SystemClock())
    failures: list[str] = []
    try:
        locations = await source.list_models()
        await source.prefetch(locations)
        for location in locations:
            scan = await source.scan(location, config_name="")
            if scan is not None and scan.error:
                failures.append(scan.error)
    finally:
        await source.aclose()
    if failures:
        raise Unavailable("; ".join(failures))
    for address in addresses:
        options.folder_of(address).mkdir(parents=True, exist_ok=True)  # of an empty repository
