"""Settings of a request, one at a time: what engines take has a type and a range, and an error names the setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpy.echo import echo
from tpy.errors import InvalidArgument

STOPS_MAX = 16
"""Texts in `stop`: each is looked for in each step."""


def flag(given: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Raises InvalidArgument for what is not true or false."""
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise InvalidArgument(f"'{name}' must be true or false, got {echo(str(value))}")
    return value


def whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """Raises InvalidArgument for what is not an integer of this range."""
    value = number(given, name, default, least, most)
    if value != int(value):
        raise InvalidArgument(f"'{name}' must be an integer from {least} to {most}, got {echo(str(given.get(name)))}")
    return int(value)


def number(given: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    """Raises InvalidArgument for what is not a number of this range."""
    value = given.get(name, default)
    if isinstance(value, str):  # parameters of requests are often texts
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidArgument(f"'{name}' must be a number from {least:g} to {most:g}, got {echo(str(given.get(name)))}")
    return value


def token_ids(given: Mapping[str, Any], name: str) -> list[int]:
    """Raises InvalidArgument for what is not a list of tokens."""
    ids = given.get(name, [])
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 2**31 for each in ids):
        raise InvalidArgument(f"'{name}' must be a list of tokens, numbers from 0 on")
    return ids


def seed(given: Mapping[str, Any]) -> int | None:
    """Raises InvalidArgument for what is not an integer of 64 bits."""
    value = given.get("seed")
    if value is not None and (type(value) is not int or not -(2**63) <= value < 2**63):
        raise InvalidArgument(f"'seed' must be an integer, got {echo(str(value))}")
    return value


def stop_strings(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Raises InvalidArgument for what is not text."""
    stop = given.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or len(stops) > STOPS_MAX or not all(isinstance(each, str) and each for each in stops):
        raise InvalidArgument(f"'stop' must be a text, or at most {STOPS_MAX} of them, none empty")
    return tuple(stops)
