"""Looks at a shared library before it is loaded: whom it was built for, and which libraries it names."""

from __future__ import annotations

import platform
import struct
from pathlib import Path
from typing import Final

import msgspec

from tpy.errors import InvalidArgument, NotFound

_MACHINES: Final = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64le", 22: "s390x"}
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC: Final = struct.Struct("<qQ")
_SHARED_OBJECT: Final = 3
_SECTION_DYNAMIC: Final = 6
_TAG_NEEDED: Final = 1


class SharedLibrary(msgspec.Struct, frozen=True):
    """The facts of a file. `needed` are the names of libraries that it wants to be loaded with it."""

    needed: tuple[str, ...]


def read(path: Path, kind: str = "backend") -> SharedLibrary:
    """Raises InvalidArgument for a file that is no shared library of this machine's kind, NotFound for none.
    `kind` is that of the plug-in."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotFound(f"unable to load {kind} library '{path}': {error.strerror}") from error
    if content[:4] != b"\x7fELF":
        raise InvalidArgument(f"unable to load {kind} library '{path}': it is no shared library (ELF file)")
    if content[4:6] != b"\x02\x01":
        raise InvalidArgument(f"unable to load {kind} library '{path}': it is not for a little-endian machine with 64 bits")
    try:
        return _read(path, content, kind)
    except (struct.error, UnicodeDecodeError, ValueError):
        raise InvalidArgument(f"unable to load {kind} library '{path}': the file is cut off or damaged") from None


def _read(path: Path, content: bytes, kind: str) -> SharedLibrary:
    header = _HEADER.unpack_from(content)
    elf_type, machine, sections_at, section_size, section_count = header[1], header[2], header[6], header[11], header[12]
    found = _MACHINES.get(machine, f"machine {machine}")
    if found != platform.machine():
        raise InvalidArgument(
            f"unable to load {kind} library '{path}': it was built for {found}, this machine is {platform.machine()}"
        )
    if elf_type != _SHARED_OBJECT:
        raise InvalidArgument(f"unable to load {kind} library '{path}': it is no shared library")
    sections = [_SECTION.unpack_from(content, sections_at + section_size * index) for index in range(section_count)]
    needed: list[str] = []
    for section in sections:
        if section[1] == _SECTION_DYNAMIC:
            texts_at = sections[section[6]][4]
            for tag, value in _DYNAMIC.iter_unpack(content[section[4] : section[4] + section[5]]):
                if tag == _TAG_NEEDED:
                    begin = texts_at + value
                    needed.append(content[begin : content.index(b"\0", begin)].decode())
    return SharedLibrary(tuple(needed))
