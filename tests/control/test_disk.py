"""The disk source on real directories, and the control plane on top of it."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.control.disk import PATIENCE_S, Disk, make_model, write
from tests.control.folders import nested
from tests.control.world import CONFIG
from tpy import limits
from tpy.clock import SystemClock
from tpy.errors import Unavailable
from tpy.ids import ModelId
from tpy.units import NS_PER_S
from tpy_control import ControlMode, DiskSource
from tpy_control.core.scan import ModelLocation, ModelScan
from tpy_control.sources.disk import DiskRepositories


async def scan_of(repository: Path, name: str = "m", config_name: str = "") -> ModelScan | None:
    return await DiskSource((repository,)).scan(ModelLocation(str(repository), name), config_name=config_name)


async def test_lists_directories_only(tmp_path: Path) -> None:
    make_model(tmp_path, "b")
    make_model(tmp_path, "a")
    write(tmp_path / "README.md")
    make_model(tmp_path, ".hidden")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    found = await DiskSource((tmp_path,)).list_models()
    assert [location.name for location in found] == ["a", "b", "linked"]


async def test_a_folder_whose_name_is_not_utf_8_is_ignored_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path, "good")
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    source = DiskSource((tmp_path,))
    for _ in range(2):
        assert [location.name for location in await source.list_models()] == ["good"]
    assert [record.getMessage() for record in caplog.records] == ["folder ignored: its name is not UTF-8"]


@pytest.mark.parametrize("kind", ["missing", "file"])
async def test_a_repository_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    repository = tmp_path / "repo"
    if kind == "file":
        write(repository)
    with pytest.raises(Unavailable, match=f"failed to stat file {repository}"):
        await DiskSource((repository,)).list_models()


async def test_a_scan_has_versions_files_and_configuration(tmp_path: Path) -> None:
    model = make_model(tmp_path, "m", 1, 10)
    write(model / "1" / "sub" / "data", "deep")
    write(model / "1" / "__pycache__" / "model.pyc")
    write(model / "labels.txt", "cat")
    (model / "2").mkdir()
    scan = await scan_of(tmp_path)
    assert scan is not None
    assert [version.version for version in scan.versions] == [1, 2, 10]
    assert scan.first_version_names == frozenset({"model.bin", "sub/"})
    assert [file.path for file in scan.shared] == ["labels.txt"]
    assert (scan.config_path, scan.config_text) == ("config.pbtxt", CONFIG)
    assert scan.shared[0].digest == hashlib.blake2b(b"cat").hexdigest()
    assert await DiskSource((tmp_path,)).fingerprints([scan.location]) == [scan.fingerprint]


async def test_a_named_configuration_and_its_fallback(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "configs" / "big.pbtxt", "max_batch_size: 8")
    big, none = await scan_of(tmp_path, config_name="big"), await scan_of(tmp_path, config_name="none")
    assert big is not None
    assert none is not None
    assert (big.config_path, big.config_text) == ("configs/big.pbtxt", "max_batch_size: 8")
    assert none.config_path == "config.pbtxt"


async def test_a_missing_directory_has_no_scan(tmp_path: Path) -> None:
    assert await scan_of(tmp_path) is None
    write(tmp_path / "m")
    assert await scan_of(tmp_path) is None
    assert await DiskSource((tmp_path,)).fingerprints([ModelLocation(str(tmp_path), "m")]) == [None]


async def test_a_configuration_that_is_no_text_is_an_error_of_its_model(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "config.pbtxt", b"name: \xff")
    scan = await scan_of(tmp_path)
    assert scan is not None
    assert "is not UTF-8 text: byte 6" in scan.error


async def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "config.pbtxt", b"\xef\xbb\xbfmax_batch_size: 1")
    scan = await scan_of(tmp_path)
    assert scan is not None
    assert scan.config_text == "max_batch_size: 1"


@pytest.mark.parametrize("kind", ["link", "folder"])
async def test_a_configuration_that_is_no_file_is_an_error_of_its_model(tmp_path: Path, kind: str) -> None:
    path = make_model(tmp_path) / "config.pbtxt"
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
    scan = await scan_of(tmp_path)
    assert scan is not None
    missing = f"failed to open text file for read {path}: No such file or directory"
    assert scan.error == (missing if kind == "link" else f"{path} is not a regular file")


async def test_a_directory_that_cannot_be_listed_is_an_error_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path)
    listing = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "1":
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    scan = await scan_of(tmp_path)
    assert scan is not None
    assert scan.error == f"cannot read {tmp_path}/m/1: Permission denied"
    [fingerprint] = await DiskSource((tmp_path,)).fingerprints([scan.location])
    assert fingerprint == scan.fingerprint


async def test_links_are_followed_once_and_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "model.bin", "weights")
    repository = tmp_path / "repo"
    model = make_model(repository)
    (model / "2").symlink_to(tmp_path / "elsewhere")
    (model / "3").symlink_to(model / "2")
    write(model / "1" / "lib" / "code.py")
    (model / "1" / "a_lib").symlink_to("lib")
    (model / "1" / "up").symlink_to(model)
    (model / "1" / "itself").symlink_to("itself")
    (model / "1" / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(model / "1" / "pipe")
    scan = await scan_of(repository)
    assert scan is not None
    assert not scan.error
    files = {int(version.version): {file.path for file in version.files} for version in scan.versions}
    assert files == {1: {"1/model.bin", "1/lib/code.py"}, 2: {"2/model.bin"}, 3: {"3/model.bin"}}
    leads = "it leads to a folder that is part of the model already"
    assert sorted(scan.warnings) == [
        f"link '1/a_lib' is not followed: {leads}",
        "link '1/itself' is not followed: it leads to itself",
        f"link '1/up' is not followed: {leads}",
    ]


def link_chain(folder: Path, length: int = 26) -> None:
    """Folders with two links each to the next: 2 ** length ways to the last."""
    for number in range(length):
        (folder / str(number)).mkdir(parents=True)
        for name in ("a", "b"):
            (folder / str(number) / name).symlink_to(f"../{number + 1}")
    (folder / str(length)).mkdir()


async def test_folders_that_multiply_by_links_are_walked_once(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    link_chain(tmp_path / "m" / "1" / "chain")
    link_chain(tmp_path / ".outside")
    (model / "1" / "out").symlink_to(tmp_path / ".outside" / "0")
    with trio.fail_after(PATIENCE_S):
        scan = await scan_of(tmp_path)
    assert scan is not None
    assert not scan.error
    assert scan.warnings[-1].endswith("more links are not followed")
    assert len(scan.warnings) < 20


@pytest.mark.parametrize("target", ["/proc", "/proc/self", "/proc/self/task", "/sys", "/proc/version"])
async def test_links_into_the_kernels_file_systems_are_refused_by_name(tmp_path: Path, target: str) -> None:
    model = make_model(tmp_path)
    (model / "1" / "p").symlink_to(target)
    with trio.fail_after(PATIENCE_S):
        scan = await scan_of(tmp_path)
    assert scan is not None
    kind = "sysfs" if target == "/sys" else "proc"
    assert scan.error == f"'{model}/1/p' leads out of the repository, into the {kind} file system"


async def test_what_is_too_deep_or_too_much_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path, "deep")
    with nested(tmp_path / "deep" / "1", 1_100):
        deep = await scan_of(tmp_path, "deep")
    assert deep is not None
    assert deep.error.endswith(f"d/d' is more than {limits.MODEL_DEPTH_MAX} folders deep")
    monkeypatch.setattr(limits, "MODEL_FILES_MAX", 30)
    for number in range(40):
        write(make_model(tmp_path, "many") / "1" / str(number))
    many = await scan_of(tmp_path, "many")
    assert many is not None
    assert many.error == f"{tmp_path}/many has more than 30 files"
    monkeypatch.setattr(limits, "MODEL_FILES_MAX", 1000)
    monkeypatch.setattr(limits, "MODEL_FOLDER_LINKS_MAX", 10)
    for number in range(11):
        (tmp_path / ".far" / str(number)).mkdir(parents=True)
        (make_model(tmp_path, "links") / "1" / f"{number:02}").symlink_to(tmp_path / ".far" / str(number))
    links = await scan_of(tmp_path, "links")
    assert links is not None
    assert links.error == f"link '{tmp_path}/links/1/10' is one too many: a model has at most 10 links to folders"


async def test_a_cancelled_scan_ends_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (make_model(tmp_path) / "1" / str(number)).mkdir()
    begun, ended, listed = threading.Event(), threading.Event(), []
    listing = os.scandir

    def slow(path: Path) -> object:
        listed.append(path)
        begun.set()
        ended.wait(0.01)
        return listing(path)

    monkeypatch.setattr(os, "scandir", slow)
    source = DiskSource((tmp_path,))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.fingerprints, [ModelLocation(str(tmp_path), "m")])
        while not begun.is_set():
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    reached = len(listed)
    await trio.to_thread.run_sync(ended.wait, 0.2)
    assert len(listed) <= reached + 1, "the thread saw that nobody waits any more"


def kubernetes(tmp_path: Path, model: Path) -> set[str]:
    """A mounted ConfigMap: files are links into `..data`, which is a link to a folder with a date; an update swaps that one."""
    write(model / "..2026_11_22" / "config.pbtxt", CONFIG)
    write(model / "..2026_11_22" / "model.bin", "weights")
    (model / "..data").symlink_to("..2026_11_22")
    (model / "config.pbtxt").symlink_to("..data/config.pbtxt")
    (model / "1").mkdir()
    (model / "1" / "model.bin").symlink_to("../..data/model.bin")
    return {"1/model.bin"}


def hugging_face(tmp_path: Path, model: Path) -> set[str]:
    """A cache of downloads: the version folder is a snapshot, whose files are links to blobs."""
    write(tmp_path / "cache" / "blobs" / "abc", "weights")
    snapshot = tmp_path / "cache" / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    (snapshot / "model.bin").symlink_to("../../blobs/abc")
    write(model / "config.pbtxt", CONFIG)
    (model / "1").symlink_to(snapshot)
    return {"1/model.bin"}


def mounted(tmp_path: Path, model: Path) -> set[str]:
    """The model's folder itself is a link to elsewhere."""
    make_model(tmp_path / "mnt", "far", 1, 2)
    model.rmdir()
    model.symlink_to(tmp_path / "mnt" / "far")
    return {"2/model.bin", "1/model.bin"}


@pytest.mark.parametrize("lay_out", [kubernetes, hugging_face, mounted])
async def test_repositories_made_of_links_work(tmp_path: Path, lay_out: Callable[[Path, Path], set[str]]) -> None:
    model = tmp_path / "repo" / "m"
    model.mkdir(parents=True)
    expected = lay_out(tmp_path, model)
    source = DiskSource((tmp_path / "repo",))
    assert [location.name for location in await source.list_models()] == ["m"]
    scan = await scan_of(tmp_path / "repo")
    assert scan is not None
    assert (scan.error, scan.warnings, scan.config_text) == ("", (), CONFIG)
    assert {file.path for version in scan.versions for file in version.files} == expected


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "kernel"])
async def test_a_configuration_that_never_ends_is_an_error_of_its_model(tmp_path: Path, kind: str) -> None:
    path = make_model(tmp_path) / "config.pbtxt"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listening.bind(str(path))
        else:
            path.symlink_to("/dev/zero" if kind == "device" else "/proc/kmsg")
        with trio.fail_after(PATIENCE_S):
            scan = await scan_of(tmp_path)
    assert scan is not None
    assert ("into the proc file system" if kind == "kernel" else f"{path} is not a regular file") in scan.error


async def test_md5_stays_inside_the_model(tmp_path: Path) -> None:
    make_model(tmp_path / "repo")
    write(tmp_path / "repo" / "secret")
    os.mkfifo(tmp_path / "repo" / "m" / "pipe")
    source = DiskSource((tmp_path / "repo",))
    location = ModelLocation(str(tmp_path / "repo"), "m")
    assert await source.md5(location, "1/model.bin") == hashlib.md5(b"weights").hexdigest()
    for path in ("../secret", str(tmp_path / "repo" / "secret"), "1/../../secret", "missing", "1", "pipe", ""):
        assert await source.md5(location, path) is None


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "repo").mkdir()
    return Disk(tmp_path / "repo")


async def test_events_bring_versions_edits_and_removals(disk: Disk) -> None:
    model = make_model(disk.repository)
    async with disk.running(ControlMode.POLL):
        await disk.wait_ready({1})
        write(model / "2" / "model.bin", "weights")
        await disk.wait_ready({2})
        write(model / "config.pbtxt", CONFIG + "version_policy { all {} }")
        await disk.wait_ready({1, 2})
        (model / "2" / "model.bin").unlink()
        (model / "2").rmdir()
        await disk.wait_ready({1})
        before = max(o.key.generation for o in disk.store.snapshot().versions_of(ModelId("m")))
        write(model / "new.tmp", "new weights")
        (model / "new.tmp").rename(model / "1" / "model.bin")
        await disk.wait_ready({1}, generation=before + 1)
        for file in sorted(model.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        model.rmdir()
        await disk.store.wait_for(lambda snapshot: not snapshot.desired)


async def test_a_swapped_link_is_a_change_at_once(disk: Disk) -> None:
    """An update of a ConfigMap."""
    model = disk.repository / "m"
    model.mkdir()
    kubernetes(disk.repository.parent, model)
    async with disk.running(ControlMode.POLL):
        await disk.wait_ready({1})
        before = max(o.key.generation for o in disk.store.snapshot().versions_of(ModelId("m")))
        write(model / "..2026_11_23" / "config.pbtxt", CONFIG)
        write(model / "..2026_11_23" / "model.bin", "other weights")
        (model / "..data_tmp").symlink_to("..2026_11_23")
        (model / "..data_tmp").rename(model / "..data")
        await disk.wait_ready({1}, generation=before + 1)


async def test_a_renamed_directory_appears_whole(disk: Disk, tmp_path: Path) -> None:
    async with disk.running(ControlMode.POLL):
        make_model(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "m").rename(disk.repository / "m")
        await disk.wait_ready({1})
        assert disk.data.loads == [("m", 1)]


async def test_polling_alone_finds_changes_too(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(28, "no watches left")

    monkeypatch.setattr("tpy_control.sources.disk.watch", refuse)
    async with disk.running(ControlMode.POLL, settle_ms=20, poll_ms=20):
        make_model(disk.repository)
        await disk.wait_ready({1})


async def test_an_explicit_index_follows_new_directories(disk: Disk) -> None:
    async with disk.running(ControlMode.EXPLICIT) as control:
        make_model(disk.repository, "later")
        while not control.index():
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert [(entry.name, entry.state) for entry in control.index()] == [("later", None)]


async def test_stopping_is_quick_although_a_watcher_waits_in_a_thread(disk: Disk) -> None:
    clock = SystemClock()
    async with disk.running(ControlMode.POLL):
        stopping_ns = clock.now_ns()
    assert clock.now_ns() - stopping_ns < 4.5 * NS_PER_S, "watchfiles' own time-out is 5 s"


@pytest.mark.parametrize("look", ["list_models", "fingerprint", "scan"])
async def test_a_disk_that_hangs_can_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    released = threading.Event()
    monkeypatch.setattr(DiskRepositories, look, lambda *_: released.wait(PATIENCE_S))
    source = DiskSource((tmp_path,))
    with trio.move_on_after(0.01) as scope:
        if look == "list_models":
            await source.list_models()
        elif look == "fingerprint":
            await source.fingerprints([ModelLocation(str(tmp_path), "m")])
        else:
            await source.scan(ModelLocation(str(tmp_path), "m"), config_name="")
    assert scope.cancelled_caught
    assert not released.is_set()
    released.set()
