"""The formats of GGUF files that OpenVINO GenAI reads, and whether all tensors are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.gguf import GgufError, GgufHeader, read_header


class _Format(NamedTuple):
    """The format of a tensor: the number of elements in a block of `size` bytes."""

    name: str
    elements: int
    size: int


_FORMATS: Final[Mapping[int, _Format]] = {
    0: _Format("F32", 1, 4),
    1: _Format("F16", 1, 2),
    2: _Format("Q4_0", 32, 18),
    3: _Format("Q4_1", 32, 20),
    6: _Format("Q5_0", 32, 22),
    7: _Format("Q5_1", 32, 24),
    8: _Format("Q8_0", 32, 34),
    10: _Format("Q2_K", 256, 84),
    11: _Format("Q3_K", 256, 110),
    12: _Format("Q4_K", 256, 144),
    13: _Format("Q5_K", 256, 176),
    14: _Format("Q6_K", 256, 210),
    16: _Format("IQ2_XXS", 256, 66),
    17: _Format("IQ2_XS", 256, 74),
    18: _Format("IQ3_XXS", 256, 98),
    19: _Format("IQ1_S", 256, 50),
    20: _Format("IQ4_NL", 32, 18),
    21: _Format("IQ3_S", 256, 110),
    22: _Format("IQ2_S", 256, 82),
    23: _Format("IQ4_XS", 256, 136),
    29: _Format("IQ1_M", 256, 56),
    30: _Format("BF16", 1, 2),
    39: _Format("MXFP4", 32, 17),
}

READ: Final = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
"""The formats that OpenVINO GenAI reads."""


def read_metadata(path: Path) -> Mapping[str, Any]:
    """The entries of the file's header by name; that the tensors are all there, in formats that the engine reads, is checked.
    Raises InvalidArgument with what is wrong with the file."""
    try:
        header = read_header(path)
        unread = _unread(header)
    except GgufError as error:
        raise InvalidArgument(f"'{path.name}' is not a whole GGUF file: {error}") from None
    if unread:
        raise InvalidArgument(
            f"'{path.name}' has tensors in the format {', '.join(sorted(unread))}, which OpenVINO GenAI does not read; "
            f"it reads {', '.join(READ)}"
        )
    return header.entries


def _unread(header: GgufHeader) -> set[str]:
    """The formats that the engine does not read. Raises GgufError for a file that ends before its tensors do, which the engine
    would not survive."""
    end, unread = 0, set()
    for tensor in header.tensors:
        known = _FORMATS.get(tensor.format)
        if known is None or known.name not in READ:
            unread.add(known.name if known is not None else f"number {tensor.format}")
            continue
        size = -(-tensor.elements // known.elements) * known.size
        if tensor.offset > header.size or size > header.size:
            raise GgufError(f"its tensor '{echo(tensor.name)}' is said to lie outside of it")
        end = max(end, tensor.offset + size)
    if not unread and header.tensors_at + end > header.size:
        raise GgufError(f"it has {header.size} bytes, its tensors need {header.tensors_at + end}")
    return unread
