"""The disk source on real directories, and the control plane on top of it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.control.world import CONFIG, FakeDataPlane
from tpy.clock import SystemClock
from tpy.errors import Unavailable
from tpy.ids import ModelId
from tpy.messages import ModelState
from tpy.state import ModelStateStore, Snapshot
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_control import ControlMode, ControlOptions, ControlPlane, DiskSource, run_control_plane
from tpy_control.core.picture import ModelLocation, ModelPicture
from tpy_control.sources.disk import DiskRepositories

PATIENCE_S = 20  # a deadline for events of the operating system, never reached on a healthy machine


def write(path: Path, content: str | bytes = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def make_model(repository: Path, name: str = "m", *versions: int) -> Path:
    write(repository / name / "config.pbtxt", CONFIG)
    for version in versions or (1,):
        write(repository / name / str(version) / "model.bin", "weights")
    return repository / name


async def picture_of(repository: Path, name: str = "m", config_name: str = "") -> ModelPicture | None:
    return await DiskSource((repository,)).picture(ModelLocation(str(repository), name), config_name=config_name)


async def test_lists_directories_only(tmp_path: Path) -> None:
    make_model(tmp_path, "b")
    make_model(tmp_path, "a")
    write(tmp_path / "README.md")
    make_model(tmp_path, ".hidden")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    found = await DiskSource((tmp_path,)).list_models()
    assert [location.name for location in found] == ["a", "b", "linked"]


async def test_a_folder_whose_name_is_not_utf_8_is_no_model_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(tmp_path, "good")
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    source = DiskSource((tmp_path,))
    for _ in range(2):
        assert [location.name for location in await source.list_models()] == ["good"]
    assert [record.getMessage() for record in caplog.records] == ["a folder is no model: its name is not UTF-8"]


@pytest.mark.parametrize("kind", ["missing", "file"])
async def test_a_repository_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    repository = tmp_path / "repo"
    if kind == "file":
        write(repository)
    with pytest.raises(Unavailable, match=f"failed to stat file {repository}"):
        await DiskSource((repository,)).list_models()


async def test_a_picture_shows_what_is_there(tmp_path: Path) -> None:
    model = make_model(tmp_path, "m", 1, 10)
    write(model / "1" / "sub" / "data", "deep")
    write(model / "1" / "__pycache__" / "model.pyc")
    write(model / "labels.txt", "cat")
    (model / "2").mkdir()
    picture = await picture_of(tmp_path)
    assert picture is not None
    assert [version.version for version in picture.versions] == [1, 2, 10]
    assert picture.first_version_names == frozenset({"model.bin", "sub/"})
    assert [file.path for file in picture.shared] == ["labels.txt"]
    assert (picture.config_path, picture.config_text) == ("config.pbtxt", CONFIG)
    assert picture.shared[0].digest == hashlib.blake2b(b"cat").hexdigest()
    assert await DiskSource((tmp_path,)).glances([picture.location]) == [picture.glance]


async def test_a_named_configuration_and_its_fallback(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "configs" / "big.pbtxt", "max_batch_size: 8")
    big, none = await picture_of(tmp_path, config_name="big"), await picture_of(tmp_path, config_name="none")
    assert big is not None
    assert none is not None
    assert (big.config_path, big.config_text) == ("configs/big.pbtxt", "max_batch_size: 8")
    assert none.config_path == "config.pbtxt"


async def test_what_is_not_there_has_no_picture(tmp_path: Path) -> None:
    assert await picture_of(tmp_path) is None
    write(tmp_path / "m")
    assert await picture_of(tmp_path) is None
    assert await DiskSource((tmp_path,)).glances([ModelLocation(str(tmp_path), "m")]) == [None]


async def test_a_configuration_that_is_no_text_is_an_error_of_its_model(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "config.pbtxt", b"name: \xff")
    picture = await picture_of(tmp_path)
    assert picture is not None
    assert "is not UTF-8 text: byte 6" in picture.error


async def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "config.pbtxt", b"\xef\xbb\xbfmax_batch_size: 1")
    picture = await picture_of(tmp_path)
    assert picture is not None
    assert picture.config_text == "max_batch_size: 1"


@pytest.mark.parametrize("kind", ["link", "folder"])
async def test_a_configuration_that_is_no_file_is_an_error_of_its_model(tmp_path: Path, kind: str) -> None:
    path = make_model(tmp_path) / "config.pbtxt"
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        path.mkdir()
    picture = await picture_of(tmp_path)
    assert picture is not None
    assert picture.error == f"{path} is not a file"


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
    picture = await picture_of(tmp_path)
    assert picture is not None
    assert picture.error == f"cannot read {tmp_path}/m/1: Permission denied"
    [glance] = await DiskSource((tmp_path,)).glances([picture.location])
    assert glance == picture.glance


async def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "model.bin", "weights")
    repository = tmp_path / "repo"
    model = make_model(repository)
    (model / "2").symlink_to(tmp_path / "elsewhere")
    (model / "1" / "up").symlink_to(model)
    (model / "1" / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(model / "1" / "pipe")
    picture = await picture_of(repository)
    assert picture is not None
    assert not picture.error
    assert {int(version.version): {file.path for file in version.files} for version in picture.versions}[2] == {"2/model.bin"}


async def test_md5_stays_inside_the_model(tmp_path: Path) -> None:
    make_model(tmp_path / "repo")
    write(tmp_path / "repo" / "secret")
    os.mkfifo(tmp_path / "repo" / "m" / "pipe")
    source = DiskSource((tmp_path / "repo",))
    location = ModelLocation(str(tmp_path / "repo"), "m")
    assert await source.md5(location, "1/model.bin") == hashlib.md5(b"weights").hexdigest()
    for path in ("../secret", str(tmp_path / "repo" / "secret"), "1/../../secret", "missing", "1", "pipe", ""):
        assert await source.md5(location, path) is None


class Disk:
    """A control plane on a directory, in real time."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.store = ModelStateStore(SystemClock())
        self.data = FakeDataPlane(self.store)
        self.control: ControlPlane

    @asynccontextmanager
    async def running(self, mode: ControlMode, *, settle_ms: int = 100, poll_ms: int = 3_600_000) -> AsyncIterator[ControlPlane]:
        options = ControlOptions(
            repositories=(self.repository,),
            mode=mode,
            settle_ns=settle_ms * NS_PER_MS,
            poll_interval_ns=poll_ms * NS_PER_MS,
        )
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.data.run)

                async def run(*, task_status: trio.TaskStatus[ControlPlane]) -> None:
                    await run_control_plane(options, self.store, self.store.desired_writer(), task_status=task_status)

                self.control = await nursery.start(run)
                await self.control.wait_startup_settled()
                yield self.control
                nursery.cancel_scope.cancel()

    async def wait_ready(self, versions: set[int], *, generation: int = 0) -> None:
        """Wait until exactly these versions of `m` are READY, the newest of at least this generation."""

        def holds(snapshot: Snapshot) -> bool:
            ready = [o.key for o in snapshot.versions_of(ModelId("m")) if o.state is ModelState.READY]
            return {int(key.version) for key in ready} == versions and max(
                (key.generation for key in ready), default=0
            ) >= generation

        await self.store.wait_for(holds)


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


async def test_a_renamed_directory_appears_whole(disk: Disk, tmp_path: Path) -> None:
    async with disk.running(ControlMode.POLL):
        make_model(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "m").rename(disk.repository / "m")
        await disk.wait_ready({1})
        assert disk.data.loads == [("m", 1)]


async def test_looking_alone_finds_changes_too(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(28, "no watches left")

    monkeypatch.setattr("watchfiles.awatch", refuse)
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
    assert clock.now_ns() - stopping_ns < 3 * NS_PER_S, "watchfiles' own time-out is 5 s"


@pytest.mark.parametrize("look", ["list_models", "glance", "picture"])
async def test_a_disk_that_hangs_can_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    released = threading.Event()
    monkeypatch.setattr(DiskRepositories, look, lambda *_: released.wait(PATIENCE_S))
    source = DiskSource((tmp_path,))
    with trio.move_on_after(0.01) as scope:
        if look == "list_models":
            await source.list_models()
        elif look == "glance":
            await source.glances([ModelLocation(str(tmp_path), "m")])
        else:
            await source.picture(ModelLocation(str(tmp_path), "m"), config_name="")
    assert scope.cancelled_caught
    assert not released.is_set()
    released.set()
