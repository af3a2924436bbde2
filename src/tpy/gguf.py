"""GGUF, the one file that llama.cpp's models are: its header, with the model's facts, vocabulary and chat template.

The file may be broken or made to do harm: every length is checked against what may come, all of them together against a bound,
and nothing behind the header is read. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from tpy import limits
from tpy.files import open_regular

TEMPLATE: Final = "tokenizer.chat_template"
TOKENS: Final = "tokenizer.ggml.tokens"
_SPECIAL_TOKENS: Final[Mapping[str, str]] = {
    "tokenizer.ggml.bos_token_id": "bos_token",
    "tokenizer.ggml.eos_token_id": "eos_token",
    "tokenizer.ggml.unknown_token_id": "unk_token",
    "tokenizer.ggml.padding_token_id": "pad_token",
}
_ALIGNMENT: Final = "general.alignment"
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING, _ARRAY = 8, 9
_DIMENSIONS_MAX: Final = 8
_NUMBERS: Final[Mapping[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
"""Forms of numbers by type."""


class GgufError(ValueError):
    """The file is not GGUF, is broken, or has a larger header than a file may have."""


class GgufTensor(NamedTuple):
    """A tensor: its format by number, and where it begins, from the first tensor on."""

    name: str
    elements: int
    format: int
    offset: int


class GgufHeader(NamedTuple):
    """The entries by name, and the tensors. These begin at `tensors_at` of the `size` bytes that the file has."""

    entries: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    tensors_at: int
    size: int


def read_header(path: Path) -> GgufHeader:
    """The header of a file. Blocks. Raises OSError and GgufError."""
    with open_regular(path) as file:
        return _Reader(file).header()


def special_tokens(entries: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the special tokens that a file names, by the names that chat templates use. Raises GgufError."""
    tokens = entries.get(TOKENS, ())
    if not isinstance(tokens, list | tuple) or not all(isinstance(each, str) for each in tokens):
        raise GgufError(f"{TOKENS} has no texts")
    numbers = {name: entries.get(key) for key, name in _SPECIAL_TOKENS.items()}
    return {name: tokens[at] for name, at in numbers.items() if type(at) is int and 0 <= at < len(tokens)}


class _Reader:
    """Reads a file from the front."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._room = limits.GGUF_HEADER_BYTES_MAX
        self._items = limits.GGUF_ITEMS_MAX

    def header(self) -> GgufHeader:
        if self._take(4) != _MAGIC:
            raise GgufError("it does not begin as GGUF does")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise GgufError(f"its version is {version}, expected 2 or 3")
        tensors = self._count(self._number("<Q"))
        entries = {self._text(): self._value(self._number("<I")) for _ in range(self._count(self._number("<Q")))}
        found = tuple(self._tensor() for _ in range(tensors))
        alignment = entries.get(_ALIGNMENT, 32)
        if type(alignment) is not int or not 0 < alignment <= 65_536:
            raise GgufError(f"its {_ALIGNMENT} is not a number of bytes")
        begin = -(-self._file.tell() // alignment) * alignment
        return GgufHeader(entries, found, begin, os.fstat(self._file.fileno()).st_size)

    def _tensor(self) -> GgufTensor:
        name, dimensions = self._text(), self._number("<I")
        if dimensions > _DIMENSIONS_MAX:
            raise GgufError(f"it has a tensor of {dimensions} dimensions")
        elements = prod(self._number("<Q") for _ in range(dimensions))
        return GgufTensor(name, elements, self._number("<I"), self._number("<Q"))

    def _value(self, kind: int, *, inner: bool = False) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY or inner:
            raise GgufError(f"it has a value of an unknown type, {kind}")
        element, count = self._number("<I"), self._number("<Q")
        if element in _NUMBERS:
            form = _NUMBERS[element]
            return struct.unpack(f"<{count}{form[1]}", self._take(count * struct.calcsize(form)))
        return [self._value(element, inner=True) for _ in range(self._count(count))]

    def _count(self, count: int) -> int:
        """A number of items, as far as there may be more of them."""
        if count > self._items:
            raise GgufError(f"its header has more than {limits.GGUF_ITEMS_MAX} items")
        self._items -= count
        return count

    def _text(self) -> str:
        return self._take(self._number("<Q")).decode(errors="replace")

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, size: int) -> bytes:
        if size > self._room:
            raise GgufError(f"its header has more than {limits.GGUF_HEADER_BYTES_MAX} bytes")
        self._room -= size
        found = self._file.read(size)
        if len(found) < size:
            raise GgufError("it ends within its header")
        return found
