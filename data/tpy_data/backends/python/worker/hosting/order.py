"""The order to host a backend, and what is answered to it. Both ends use it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement
from tpy.config import ModelConfig
from tpy_data.backends.creation import BackendOrigin


class HostedContext(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `ModelContext` that crosses to a worker."""

    name: str
    version: int
    generation: int
    config: ModelConfig
    model_directory: str
    version_directory: str
    server_id: str


class HostingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A backend, and what to do with it: without a context to say what it is capable of, without a placement to complete the
    model's configuration, with both to make an instance."""

    origin: BackendOrigin
    backend: str
    settings: Mapping[str, str]
    directory: str | None
    library: str | None = None
    context: HostedContext | None = None
    placement: InstancePlacement | None = None

    def backend_settings(self) -> BackendSettings:
        """As the backend's factory takes them."""
        directory = None if self.directory is None else Path(self.directory)
        library = None if self.library is None else Path(self.library)
        return BackendSettings(name=self.backend, config=self.settings, backend_directory=directory, library=library)


class HostingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities, and the completed configuration where one was to be completed."""

    capabilities: BackendCapabilities
    config: ModelConfig | None = None


Packed = TypeVar("Packed")
decode_order = msgspec.msgpack.Decoder(HostingOrder).decode
decode_answer = msgspec.msgpack.Decoder(HostingAnswer).decode


def pack(value: object) -> str:
    """As text that JSON can carry, without any loss."""
    return base64.b64encode(msgspec.msgpack.encode(value)).decode()


def unpack(text: str, decode: Callable[[bytes], Packed]) -> Packed:
    """Undo `pack`. Raises msgspec.DecodeError or ValueError for anything else."""
    return decode(base64.b64decode(text))
