"""--rate-limit and --rate-limit-resource."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.cli.parsing import UsageError
from tpy_data.schedulers.core.rate_limiter import Supply

_COUNT_MAX = 2**32 - 1
"""Counts are uint32 in a model's configuration."""


def rate_limit_supply(mode: str, resources: Sequence[str]) -> Supply | None:
    """The resources of the rate limiter; None: nothing is rate limited. Raises UsageError, also where it is off."""
    counts: dict[tuple[str, int | None], int] = {}
    for text in resources:
        name, *rest = text.split(":")
        numbers = [int(part) for part in rest if part.isascii() and part.isdigit() and len(part) <= 10]
        if not name or len(numbers) != len(rest) or len(rest) not in (1, 2) or numbers[0] > _COUNT_MAX:
            raise UsageError(
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
                f"Got {text}"
            )
        key = (name, numbers[1] if len(numbers) == 2 else None)
        if key in counts:
            raise UsageError(f"--rate-limit-resource: '{text}' gives a count that was given before")
        counts[key] = numbers[0]
    return Supply(counts=counts) if mode == "execution_count" else None
