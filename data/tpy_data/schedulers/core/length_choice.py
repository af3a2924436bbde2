"""The choice of the requests that go together where a batch is padded to its longest row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from tpy_data.schedulers.core.contract import Ticket

Some = TypeVar("Some", bound=Ticket)


def together(tickets: Sequence[Some], rows_max: int, padding_ppm_max: int) -> list[Some]:
    """The tickets of the next batch, in their order: the first one, so that none waits for more batches than tickets are before
    it, and with it as many rows as possible. They are those next to it by length, up to `rows_max` rows: one that does not fit
    beside the first and the ones between them is passed over. Padding is at most this share, in millionths. Of several choices
    with as many rows it is one with the least padding; of tickets of one length the first are taken.
    """
    first = tickets[0]
    others_max = rows_max - first.batch_size
    if others_max <= 0 or len(tickets) == 1:
        return [first]
    length = first.length
    longer = _fitting(sorted([each for each in tickets[1:] if each.length >= length], key=_length), others_max)
    shorter = _fitting(sorted([each for each in tickets if each.length < length], key=_length, reverse=True), others_max)
    rows_above, elements_above = _sums(longer, 0, 0)
    rows_below, elements_below = _sums(shorter, first.batch_size, first.batch_size * length)
    rows_most = padding_least = above_best = below_best = below = 0
    for above, rows in enumerate(rows_above):
        if above:
            length = longer[above - 1].length
        # Only choices with as many rows as the best one are looked at. Beside the same longest, each of the shorter ones adds to
        # the share of padding, so the first that is too much ends it.
        while below and rows + rows_below[below - 1] >= rows_most:
            below -= 1
        while below < len(rows_below):
            both = rows + rows_below[below]
            padding = both * length - elements_above[above] - elements_below[below]
            if both > rows_max or 1_000_000 * padding > padding_ppm_max * both * length:
                break
            if both > rows_most or (both == rows_most and padding < padding_least):
                rows_most, padding_least, above_best, below_best = both, padding, above, below
            below += 1
    members = {first, *longer[:above_best], *shorter[:below_best]}
    return [each for each in tickets if each in members]


def _fitting(tickets: Sequence[Some], rows_max: int) -> list[Some]:
    """The tickets, in their order, without each that would be too many rows behind those before it."""
    found: list[Some] = []
    for ticket in tickets:
        if ticket.batch_size <= rows_max:
            found.append(ticket)
            rows_max -= ticket.batch_size
            if not rows_max:
                break
    return found


def _sums(tickets: Sequence[Ticket], rows: int, elements: int) -> tuple[list[int], list[int]]:
    """By how many of the tickets are added to these: the rows, and the elements without padding."""
    return (
        list(accumulate([each.batch_size for each in tickets], initial=rows)),
        list(accumulate([each.batch_size * each.length for each in tickets], initial=elements)),
    )


def _length(ticket: Ticket) -> int:
    return ticket.length
