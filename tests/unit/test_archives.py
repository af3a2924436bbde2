"""Archives of others: what is read, and what is refused before anything is written."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tpy import archives
from tpy.archives import UnusableArchive, open_archive

FILES = {"MAR-INF/MANIFEST.json": b"{}", "a/b.py": b"x = 1\n", "large.bin": bytes(range(256)) * 9000}


def zipped(path: Path, files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda info: None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            change(info)
            archive.writestr(info, content)
    return path


def tarred(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def refused(path: Path, target: Path) -> str:
    with pytest.raises(UnusableArchive) as caught, open_archive(path) as archive:
        archive.unpack(target)
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_is_read_and_unpacked(kind: str, tmp_path: Path) -> None:
    if kind == "zip":
        path = zipped(tmp_path / "x.mar", {"top/": b"", **{f"top/{name}": content for name, content in FILES.items()}})
    else:
        folder = (member("top", tarfile.DIRTYPE), b"")
        path = tarred(tmp_path / "x.tgz", folder, *((member(f"top/{name}"), content) for name, content in FILES.items()))
    with open_archive(path) as archive:
        assert archive.sizes == {f"top/{name}": len(content) for name, content in FILES.items()}
        assert archive.read("top/a/b.py", bytes_max=100) == FILES["a/b.py"]
        with pytest.raises(UnusableArchive, match=r"'top/large\.bin' has 2304000 bytes, at most 100 are accepted"):
            archive.read("top/large.bin", bytes_max=100)
        archive.unpack(tmp_path / "target", within="top/")
    made = {path.relative_to(tmp_path / "target").as_posix(): path.read_bytes() for path in tmp_path.rglob("target/**/*.*")}
    assert made == FILES


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "a\\..\\out", "C:\\out", "a\nb"])
def test_paths_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    assert "its path leads out" in refused(zipped(tmp_path / "x.mar", {"good": b"", name: b""}), tmp_path / "target")
    tar = tarred(tmp_path / "x.tgz", (member("good"), b""), (member(name), b""))
    assert "its path leads out" in refused(tar, tmp_path / "target")


def test_links_devices_and_holes_are_refused(tmp_path: Path) -> None:
    def as_link(info: zipfile.ZipInfo) -> None:
        info.external_attr = (stat.S_IFLNK | 0o777) << 16

    assert "'x' is refused: a link or a device" in refused(
        zipped(tmp_path / "x.mar", {"x": b"/etc/passwd"}, as_link), tmp_path / "t"
    )
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
        tar = tarred(tmp_path / "x.tgz", (member("x", kind, "/etc/passwd"), b""))
        assert "'x' is refused: a link, a device, or a file with holes" in refused(tar, tmp_path / "target")


def test_encrypted_files_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.mar", {"x": b"content"})
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1
    path.write_bytes(content)
    assert "'x' is refused: encrypted" in refused(path, tmp_path / "target")


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.mar"
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("a", b"1")
        archive.writestr("./a", b"2")
    assert refused(path, tmp_path / "target") == "'./a' is there twice"
    tar = tarred(tmp_path / "x.tgz", (member("a"), b""), (member("a/b"), b""))
    assert refused(tar, tmp_path / "target") == "'a' is there twice: a file and a folder"


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ARCHIVE_BYTES_FREE", 1000)
    text = refused(zipped(tmp_path / "x.mar", {"a": bytes(100_000)}), tmp_path / "target")
    assert "bytes, at most 50 times its size are accepted" in text
    assert "at most 50 times" in refused(tarred(tmp_path / "x.tgz", (member("a"), bytes(1_000_000))), tmp_path / "target")
    monkeypatch.setattr(archives, "MODEL_ARCHIVE_ENTRIES_MAX", 3)
    many = {str(at): b"" for at in range(4)}
    assert refused(zipped(tmp_path / "x.mar", many), tmp_path / "target") == "it has more than 3 entries"


def test_a_head_that_is_a_bomb_is_not_read(tmp_path: Path) -> None:
    """A long name in tar's own format has a size, and tarfile reads all of it, before anybody sees an entry."""
    head = member("x", tarfile.GNUTYPE_LONGNAME)
    head.size = 64 * 1024 * 1024
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(head.tobuf() + bytes(head.size)))
    assert "the head of an entry has more than" in refused(path, tmp_path / "target")


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100, b"PK\x03\x04" + bytes(100), b"\x1f\x8b" + bytes(100)])
def test_what_is_no_archive_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.mar").write_bytes(content)
    assert "it cannot be read" in refused(tmp_path / "x.mar", tmp_path / "target")


def test_a_file_that_is_not_what_it_says_is_not_taken(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.mar", {"x": b"content of a file"})
    content = bytearray(path.read_bytes())
    content[content.index(b"x", 30) + 3] ^= 0xFF  # within the compressed bytes
    path.write_bytes(content)
    with open_archive(path) as archive, pytest.raises(UnusableArchive, match="'x' cannot be unpacked"):
        archive.unpack(tmp_path / "target")
