"""The local copies of repositories in the cloud: crashes, restarts, full disks, cleaning jobs, bounds."""

from __future__ import annotations

import errno
import functools
import os
import shutil
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.backends import onnx_models
from tests.cloud_servers import FaultyProxy, S3Server, refuse
from tpy.errors import Unavailable
from tpy_cloud import copies, download

from .clouds import affine, opened, scan_of


async def test_what_was_fetched_ahead_is_for_one_scan(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(proxy.host, prefix, tmp_path) as source:
        [location] = await source.list_models()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(source.scan, location, config_name=""))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(source.prefetch, [location])  # the scan came first: it needs nothing of this
        affine(s3, prefix, "m", 3)
        assert ((await scan_of(source)).directory / "1/model.onnx").read_bytes() == onnx_models.affine(3, 0)
        await source.prefetch([location])
        del proxy.requests[:]
        assert not (await source.scan(location, config_name="")).error  # type: ignore[union-attr]
        assert not proxy.requests


@pytest.mark.parametrize("calls", range(5))
async def test_a_crash_in_the_middle_leaves_no_copy_that_serves(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The process ends after so many renames: the manifest without the files, the files, the manifest with them."""
    affine(s3, prefix, "m", 2)
    left = [calls]

    def replace(source: Path, target: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("the power fails")
        os.rename(source, target)

    monkeypatch.setattr(copies.os, "replace", replace)
    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        assert bool(scan.error) == (calls < 4)
    monkeypatch.undo()
    proxy.fault = refuse(503, "SlowDown")
    async with opened(proxy.host, prefix, tmp_path) as source:
        if calls < 4:
            with pytest.raises(Unavailable):
                await source.list_models()
        else:
            assert not (await scan_of(source)).error
    proxy.fault = None
    del proxy.requests[:]
    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        assert not scan.error
        assert (scan.directory / "1/model.onnx").read_bytes() == onnx_models.affine(2, 0)
    assert len([path for path in proxy.requests if "list-type" not in path]) == (2 if calls < 4 else 0)


async def test_a_copy_that_was_touched_is_fetched_again_after_a_restart(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(s3.host, prefix, tmp_path) as source:
        directory = (await scan_of(source)).directory
    good = (directory / "1/model.onnx").read_bytes()
    (directory / "1/model.onnx").write_bytes(bytes(len(good)))
    (directory / "1/planted.py").write_text("not of the repository")
    async with opened(s3.host, prefix, tmp_path) as source:
        await scan_of(source)
        assert (directory / "1/model.onnx").read_bytes() == good
        assert not (directory / "1/planted.py").exists()


@pytest.mark.parametrize("lost", ["1/model.onnx", "1", "2", ".", "../..", "../../m.json"])
async def test_a_copy_that_somebody_removes_is_fetched_again(s3: S3Server, prefix: str, tmp_path: Path, lost: str) -> None:
    """Such as a job that cleans temporary folders; `2` is a folder without files."""
    affine(s3, prefix, "m", 2)
    s3.put(f"{prefix}/m/2/", "")
    async with opened(s3.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        place = scan.directory / lost
        place.unlink() if place.is_file() else shutil.rmtree(place.resolve())
        again = await scan_of(source)
        assert (again.fingerprint, [version.version for version in again.versions]) == (scan.fingerprint, [1, 2])
        assert (scan.directory / "1/model.onnx").read_bytes() == onnx_models.affine(2, 0)
    async with opened(s3.host, prefix, tmp_path) as source:
        assert (await scan_of(source)).fingerprint == scan.fingerprint


async def test_a_disk_that_is_full(s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    affine(s3, prefix, "m", 2)
    s3.put(f"{prefix}/other/1/data", os.urandom(1000))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with opened(s3.host, prefix, tmp_path, bytes_max=1100) as source:
        scan = await scan_of(source)
        affine(s3, prefix, "m", 3)
        monkeypatch.setattr(download.os, "pwrite", full)
        refused = await scan_of(source)
        assert "the local copy cannot be written: No space left on device" in refused.error
        assert (scan.directory / "1/model.onnx").read_bytes() == onnx_models.affine(2, 0), "what serves stays as it is"
        monkeypatch.undo()
        source.prepared(scan.directory, is_used=False)
        blocked = scan.directory.parents[1] / "parts"
        shutil.rmtree(blocked)
        blocked.write_text("")
        assert "cannot be written" in (await scan_of(source)).error
        blocked.unlink()
        source.prepared(scan.directory, is_used=False)
        assert not (await scan_of(source, "other")).error, "no room is kept for what could not be downloaded"


async def test_two_servers_do_not_share_a_directory(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(s3.host, prefix, tmp_path) as source, opened(s3.host, prefix, tmp_path) as other:
        await source.list_models()
        with pytest.raises(Unavailable, match="is used by another server"):
            await other.list_models()


async def test_the_copies_have_no_more_bytes_than_they_may(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        s3.put(f"{prefix}/{name}/1/data", os.urandom(1000))
    async with opened(s3.host, prefix, tmp_path, bytes_max=2500) as source:
        scans = {name: await scan_of(source, name) for name in ("a", "b")}
        source.prepared(scans["a"].directory, is_used=False)
        source.prepared(scans["b"].directory, is_used=True)
        assert not (await scan_of(source, "c")).error
        assert not scans["a"].directory.exists(), "the one that is not used made room"
        refused = await scan_of(source, "a")
        assert "do not fit" in refused.error
        assert "--repository-cache-byte-size" in refused.error
