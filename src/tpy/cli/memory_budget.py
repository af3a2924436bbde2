"""The options of --model-memory-budget and its companions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tpy.cli.parsing import UsageError
from tpy.units import NS_PER_S
from tpy_data.engine import MemoryBudgetOptions

_SIZES: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def parse_bytes(text: str) -> int:
    """The bytes of a size such as `1073741824`, `1GiB`, `1.5G`, `512 MiB` or `512M`: all units are powers of 1024. Raises
    ValueError for anything else, and below one byte."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?) ?([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE | re.ASCII)
    size = 0 if found is None else int(float(found[1]) * 2 ** _SIZES[found[2].upper()])
    if size < 1:
        raise ValueError(f"'{text}' is not a size, expected bytes or a number with KiB, MiB, GiB or TiB")
    return size


def memory_budget_options(
    size: str, gpu_sizes: Sequence[str], *, wait_s: int, all_on_demand: bool, file: str
) -> MemoryBudgetOptions:
    """Raises UsageError for an invalid size, and for flags that need a size."""
    if not size:
        flag = "--model-sizes-file" if file else "--model-gpu-memory-budget"
        if all_on_demand:
            flag = "--model-control-mode=on-demand"
        raise UsageError(f"{flag} needs --model-memory-budget, such as 20GiB")
    try:
        size_bytes = parse_bytes(size)
    except ValueError as error:
        raise UsageError(f"--model-memory-budget: {error}") from None
    return MemoryBudgetOptions(
        bytes=size_bytes,
        gpus=_by_gpu(gpu_sizes),
        wait_ns_max=wait_s * NS_PER_S,
        all_on_demand=all_on_demand,
        file=Path(file).absolute() if file else None,
    )


def _by_gpu(texts: Sequence[str]) -> dict[int, int]:
    """Sizes by the number of the GPU. Raises UsageError."""
    sizes: dict[int, int] = {}
    for text in texts:
        number, colon, size = text.partition(":")
        if not (colon and re.fullmatch(r"\d{1,9}", number, re.ASCII)):
            raise UsageError(f"--model-gpu-memory-budget: expected <GPU device ID>:<size>, such as 0:20GiB, got '{text}'")
        if int(number) in sizes:
            raise UsageError(f"--model-gpu-memory-budget: GPU {int(number)} is given twice")
        try:
            sizes[int(number)] = parse_bytes(size)
        except ValueError as error:
            raise UsageError(f"--model-gpu-memory-budget: GPU {int(number)}: {error}") from None
    return sizes
