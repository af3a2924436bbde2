"""Repeats callers' texts in error messages and logs: whole at ordinary sizes, cut where they are long.

Error texts name inputs, models, ids and parameters as the caller wrote them. A name may be as long as a request; a request may
have as many names as fit into it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpy.limits import ECHO_CHARACTERS_MAX, ECHO_LIST_CHARACTERS_MAX


def echo(text: str, characters_max: int = ECHO_CHARACTERS_MAX) -> str:
    """`text`, or its beginning and how much is left out: never much longer than `characters_max`."""
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text) - characters_max} more characters)"


def echo_list(items: Iterable[object], separator: str = ",") -> str:
    """The items with `separator` between them, as far as ECHO_LIST_CHARACTERS_MAX characters go, then how many more there are."""
    shown: list[str] = []
    left_out = 0
    room = ECHO_LIST_CHARACTERS_MAX
    for item in items:
        if room <= 0:
            left_out += 1
            continue
        shown.append(echo(str(item)))
        room -= len(shown[-1])
    text = separator.join(shown)
    return f"{text}, ... and {left_out} more" if left_out else text


def request_prefix(request_id: str) -> str:
    """Triton's prefix of messages about one request."""
    return f"[request id: {echo(request_id) or '<id_unknown>'}] "


def printable(text: str) -> str:
    """The text without what a terminal would obey: names and reasons are other people's."""
    return "".join(character if character.isprintable() else "?" for character in text)
