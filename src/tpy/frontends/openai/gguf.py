"""The chat template in a GGUF file, the one file that llama.cpp's models are.

In front of the weights the file has metadata: keys with values, among them the template, the tokens, and the numbers of the
special ones. Only these are read, and nothing behind them. The file may be broken or made to do harm: every length is checked
against what is left, and all of them together against a bound."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from tpy import limits
from tpy.files import open_regular

GGUF_TEMPLATE: Final = "tokenizer.chat_template"
_TOKENS: Final = "tokenizer.ggml.tokens"
_SPECIAL_TOKENS: Final[Mapping[str, str]] = {
    "tokenizer.ggml.bos_token_id": "bos_token",
    "tokenizer.ggml.eos_token_id": "eos_token",
    "tokenizer.ggml.unknown_token_id": "unk_token",
    "tokenizer.ggml.padding_token_id": "pad_token",
}
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS: Final[Mapping[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
"""Forms of numbers by type; 7 is a truth value."""


class GgufError(ValueError):
    """The file is not GGUF, is broken, or has more metadata than a file may have."""


class GgufTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The chat template of a file, "" where it has none, and its special tokens."""

    text: str
    tokens: Mapping[str, str]


def read_gguf_template(path: Path) -> GgufTemplate:
    """The chat template in a file. Blocks. Raises OSError and GgufError."""
    with open_regular(path) as file:
        return _Metadata(file).template()


class _Metadata:
    """The metadata of a file, read from the front."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._room = limits.OPENAI_GGUF_BYTES_MAX
        self._items = limits.OPENAI_GGUF_ITEMS_MAX

    def template(self) -> GgufTemplate:
        if self._take(4) != _MAGIC:
            raise GgufError("it does not begin as GGUF does")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise GgufError(f"its version is {version}, expected 2 or 3")
        self._number("<Q")  # of tensors
        text, tokens, numbers = "", [], {}
        for _ in range(self._count(self._number("<Q"))):
            key = self._string().decode(errors="replace")
            kind = int(self._number("<I"))
            if key == GGUF_TEMPLATE and kind == _STRING:
                text = self._string().decode(errors="replace")
            elif key == _TOKENS and kind == _ARRAY:
                tokens = self._strings()
            elif key in _SPECIAL_TOKENS and kind in _NUMBERS:
                numbers[_SPECIAL_TOKENS[key]] = self._number(_NUMBERS[kind])
            else:
                self._skip(kind)
        found = {name: tokens[int(at)].decode(errors="replace") for name, at in numbers.items() if 0 <= at < len(tokens)}
        return GgufTemplate(text=text, tokens=found)

    def _strings(self) -> list[bytes]:
        if self._number("<I") != _STRING:
            raise GgufError(f"{_TOKENS} has no texts")
        return [self._string() for _ in range(self._count(self._number("<Q")))]

    def _skip(self, kind: int, *, inner: bool = False) -> None:
        """Pass over a value."""
        if kind in _NUMBERS:
            self._take(struct.calcsize(_NUMBERS[kind]))
        elif kind == _STRING:
            self._take(self._number("<Q"))
        elif kind == _ARRAY and not inner:
            element, count = int(self._number("<I")), self._number("<Q")
            if element in _NUMBERS:
                self._take(count * struct.calcsize(_NUMBERS[element]))
            else:
                for _ in range(self._count(count)):
                    self._skip(element, inner=True)
        else:
            raise GgufError(f"it has a value of an unknown type, {kind}")

    def _count(self, count: float) -> int:
        """A number of items, as far as there may be more of them."""
        if count > self._items:
            raise GgufError(f"its metadata have more than {limits.OPENAI_GGUF_ITEMS_MAX} items")
        self._items -= int(count)
        return int(count)

    def _string(self) -> bytes:
        return self._take(self._number("<Q"))

    def _number(self, form: str) -> float:
        found: float = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return found

    def _take(self, size: float) -> bytes:
        if size > self._room:
            raise GgufError(f"its metadata have more than {limits.OPENAI_GGUF_BYTES_MAX} bytes")
        self._room -= int(size)
        found = self._file.read(int(size))
        if len(found) < size:
            raise GgufError("it ends within its metadata")
        return found
