"""Recognises by its first bytes what a file is that a framework cannot read, for the end of the sentence that says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_BEGIN_SIZE: Final = 512


class _Kind(NamedTuple):
    """A kind of file. `step` is what to do with one; `backends` can read it."""

    name: str
    is_one: Callable[[bytes], object]
    step: str = ""
    backends: tuple[str, ...] = ()


def _begins(*begins: bytes) -> Callable[[bytes], bool]:
    return lambda content: content.startswith(begins)


def _matches(pattern: bytes) -> Callable[[bytes], object]:
    return re.compile(pattern, re.DOTALL | re.IGNORECASE).match


_KINDS: Final = (
    _Kind("a pointer of Git LFS", _begins(b"version https://git-lfs"), "fetch the file itself (git lfs pull)"),
    _Kind("a page of HTML", _matches(rb"\s*<(!doctype html|html)"), "the download of the model went wrong: look at the page"),
    _Kind("compressed by gzip", _begins(b"\x1f\x8b"), "decompress it"),
    _Kind("a model of TensorFlow Lite", lambda content: content[4:8] == b"TFL3", backends=("litert", "openvino")),
    _Kind("a network of OpenVINO", _matches(rb"\s*(<\?xml[^>]*>)?\s*<net\s"), backends=("openvino",)),
    _Kind("a model of LightGBM", _matches(rb"tree\r?\nversion="), backends=("fil",)),
    _Kind("a model of XGBoost", _matches(rb'\{(\s*"|L.{8}|[iU].|[Il].{2,4})(learner|Config|version)'), backends=("fil",)),
    _Kind("a model of Keras", _begins(b"\x89HDF\r\n"), "export it as a SavedModel (model.export)"),
    _Kind("an engine of TensorRT", _begins(b"vtrt", b"ftrt"), backends=("tensorrt",)),
    # Messages of protobuf: the first fields that each of them has, in the order in which they are written.
    _Kind("a SavedModel", _matches(rb"\x08\x01\x12.{1,5}\x0a"), "put it into a folder as saved_model.pb", ("tensorflow",)),
    _Kind("a pipeline of DALI", _matches(rb"\x08[^\x80-\xff]\x10"), backends=("dali",)),
    _Kind("a model of ONNX", _matches(rb"\x08[\x03-\x20][\x12\x1a\x22\x32\x3a\x42]"), backends=("onnxruntime", "openvino")),
    _Kind("a graph of TensorFlow", _matches(rb"\x0a.{1,4}\x0a.[\w./^-]+\x12.[A-Z]\w+"), backends=("tensorflow",)),
    _Kind(
        "a pickle", _matches(rb"\x80[\x02-\x05]"), 'only those of scikit-learn are served, with backend: "sklearn"', ("sklearn",)
    ),
    _Kind("a zip archive", _begins(b"PK\x03\x04"), backends=("pytorch", "sklearn")),
)


def contents_of(path: Path, backend: str, otherwise: str = "") -> str:
    """Returns what a file that `backend` cannot read is, and the next step, to be put behind the reason; `otherwise`, another
    step, of a file that is nothing known. One of a kind that the backend does read is damaged."""
    if other := other_contents(path, backend):
        return f"; {other}"
    if kind := _kind_of(path):
        return f"; it begins as {kind.name}, so it is damaged, truncated, or of an unknown version"
    return f"; {otherwise}" if otherwise else ""


def other_contents(path: Path, backend: str) -> str:
    """For a file that is plainly not one of `backend`'s, returns what it is and the next step; "" for any other."""
    if not path.stat().st_size:
        return "the file is empty: copy it again"
    kind = _kind_of(path)
    if kind is None or backend in kind.backends:
        return ""
    served = " or ".join(f'"{name}"' for name in kind.backends)
    return f"it is {kind.name}: {kind.step or f'it is served with backend: {served}'}"


def _kind_of(path: Path) -> _Kind | None:
    with path.open("rb") as file:
        begin = file.read(_BEGIN_SIZE)
    return next((kind for kind in _KINDS if kind.is_one(begin)), None)
