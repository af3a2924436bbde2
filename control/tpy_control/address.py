"""Addresses of model repositories: folders of this machine, and places elsewhere, which begin with a scheme."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec


class RemoteAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that is not a folder of this machine; `text` is the address as it was given. Sources have classes under it."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def scheme(self) -> str:
        """The part of the text before `://`."""
        return scheme_of(self.text)

    @property
    def readable(self) -> str:
        """The part of the name of its folder that people recognise."""
        return self.text.partition("://")[2]


RepositoryAddress = Path | RemoteAddress


def scheme_of(text: str) -> str:
    """The scheme that an address begins with; "" for a path."""
    scheme, separator, _ = text.partition("://")
    return scheme if separator and re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) else ""


def folder_name(address: RemoteAddress) -> str:
    """The name of a folder for a repository: readable, and different for different addresses."""
    readable = re.sub(r"[^a-z0-9]+", "-", address.readable.lower()).strip("-")[:60]
    return f"{readable}-{hashlib.blake2b(address.text.encode(), digest_size=6).hexdigest()}"


def models_folder(directory: Path, address: RemoteAddress) -> Path:
    """The folder that stands for a repository, in this directory of copies."""
    return directory / folder_name(address) / "models"
