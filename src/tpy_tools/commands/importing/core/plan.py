"""A plan: the model folders to make, and for each part of the source what becomes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import msgspec

from tpy.config import ModelConfig

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")


class Unimportable(Exception):
    """A model, or the whole source, cannot be imported. `str()` says why, and what to do."""


class Part(msgspec.Struct, frozen=True):
    """A setting or file of the source, and what becomes of it; of parts that are not carried over why, or what to do instead."""

    source: str
    becomes: str


class Copy(msgspec.Struct, frozen=True):
    """A file or folder, by its absolute path or that in the source, that is copied into the model folder."""

    source: str
    target: str


class LinkTarget(msgspec.Struct, frozen=True):
    """A file or folder, by its absolute path, that the model folder links to: it may be large, and its owner may change it."""

    source: str
    target: str


class Unpack(msgspec.Struct, frozen=True):
    """An archive, by its absolute path: what is in its folder `within`, "" for all, is unpacked into the model folder."""

    source: str
    target: str
    within: str = ""


class Text(msgspec.Struct, frozen=True):
    """A file of the model folder that is written anew."""

    target: str
    text: str


class Export(msgspec.Struct, frozen=True):
    """A model of the library transformers, by its absolute folder, that the exporter of optimum writes as ONNX into a folder of
    the model folder. `task` is its name there. Code of the model's author is not run."""

    source: str
    target: str
    task: str


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model folder. `header` and `footer` are comments at both ends of its config.pbtxt. `completes`: the backend can tell
    inputs and outputs from the file, without running code of its author. `shapes` are the shapes that inputs get then, by name,
    "" for the only one. `steps` are left to the user."""

    name: str
    config: ModelConfig
    files: Sequence[Copy | Export | LinkTarget | Text | Unpack]
    carried: Sequence[Part]
    lost: Sequence[Part] = ()
    header: str
    footer: str = ""
    completes: bool = False
    shapes: Mapping[str, tuple[int, ...]] = {}
    steps: Sequence[str] = ()


class ImportPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All of an import. `kind` names the tool that wrote the source; `refused` are models that are not imported, and why."""

    kind: str
    models: Sequence[ModelPlan]
    refused: Sequence[Part] = ()


def require_name(name: str) -> str:
    """The name, if a model can have it. Raises Unimportable."""
    if not _NAME.fullmatch(name):
        raise Unimportable(f"'{name}' cannot be a model's name here; expected letters, digits, '_', '-' and '.'")
    return name


def require_inside(path: str, said_by: str) -> str:
    """A path that the source says, relative to its folder and without leaving it. Raises Unimportable."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path:
        raise Unimportable(f"{said_by}: '{path}' leaves the folder of the model")
    return str(pure)


def text_of(value: object) -> str:
    """A text of a document that somebody else wrote; "" for anything else. Never str() of what may be nested without end."""
    return value if isinstance(value, str) else ""
