"""Bounds of batching that tunes itself."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB, NS_PER_MS, NS_PER_S

CURVE_CELLS_MAX: Final = 64
"""Sizes that a cost curve tells apart: each of the usual ones, and of larger batches steps of 2 % or less."""

CURVE_MEMORY: Final = 32
"""Batches of a size that its mean time remembers: enough to level noise of some per cent, few enough to follow a model that
becomes slower within a second."""

CURVE_AGE_BATCHES: Final = 4096
"""Batches after which what is known of each size counts half: a size that never occurs is forgotten after three to six times
as many, and tried again if it matters. A trial is a few batches that may take several times as long as the best: with this many
between them, one in a thousand."""

KNOWN_BATCHES_MIN: Final = 4
"""Batches of a size before a decision rests on it."""

FIT_BATCHES: Final = 16
"""Batches between two looks at the curve: a look costs some hundred microseconds, so a few for each batch."""

ARRIVALS_NS: Final = 2 * NS_PER_S
"""The rate of arrivals is of about so long a past: long beside a batch, short beside a change of the load."""

REPLAYED_ARRIVALS_MAX: Final = 1024
"""Arrivals of one execution that are replayed; the largest batches have about as many."""

WINDOWS_MIN: Final = 4
"""Replays with a number of rows before its wait may be used: clients that come back together all do so each time. Where replays
differ, chance asks for more of them."""

TUNED_CONVOYS_MIN: Final = 12
"""Times in a row that a convoy must be seen before it is halved: until then it is known whether a wait is better."""

WINDOWS_LATELY: Final = 8
"""The last replays, in which a wait must not have cost more than it saved: clients may have gone."""

LEARN_NS_MIN: Final = 5 * NS_PER_MS
"""From one batch that is learned of to the next, where its size is known and no wait has paid for long: to learn costs some
twenty microseconds, with what a look at the curve costs 1 % of this. Clients that come together are still seen within some ten of
these."""

SPLIT_NS_MIN: Final = NS_PER_MS
"""A batch that takes less is neither split nor tried with half its size: what else the machine does meanwhile matters more to
its time than its size. Small batches are sent when few clients are there, and look quick for that reason."""

COMPANY_MEMORY: Final = 4
"""Replays that the number of rows to wait for is the mean of: with few of them it follows a changed number of clients."""

WINDOWS_MEMORY: Final = 32
"""Replays that the mean gain of a wait remembers. One replay of random arrivals is off by some 30 %, 32 by some 5 %."""

GAIN_PERMILLE_MIN: Final = 50
"""A wait, or a split, must save this much of the time of the requests: about as much as the estimates may be wrong."""

SHARED_GAIN_PERMILLE_MIN: Final = 300
"""The same for a wait beside busy instances: less is known of what they do next. Random requests seem to gain 15 %, and lose;
bursts, and clients that wait for their answers, gain more than this."""

WAIT_NS_MAX: Final = 100 * NS_PER_MS
"""The longest wait for company, whatever an execution takes."""

LENGTH_WINDOW_BATCHES: Final = 8
"""Full batches that the requests are looked at for, where batches are formed by length: of sentences of different lengths that
wait, a batch of 32 out of 256 has 10 % padding, out of 64 twice as much."""

LENGTH_WINDOW_MIN: Final = 64
"""Requests that are looked at for a batch by length, at least: small batches have few alike among a few."""

LENGTH_WINDOW_MAX: Final = 1024
"""Requests that are looked at for a batch by length, at most: to choose among them takes a millisecond, with tenants two."""

LENGTH_LOOKED_AT_MAX: Final = 128
"""Requests that are looked at for each one in a batch by length: 0.1 ms of the loop, with many tenants 0.4."""

LENGTH_WINDOW_LOOKS: Final = 16
"""One look in this many is at as many requests as there may be, whatever batches came of fewer."""

CURVES_KEPT_MAX: Final = 1_000
"""Curves that are kept in a file: about 5 MB, as a curve has up to CURVE_CELLS_MAX points."""

CURVES_FILE_BYTES_MAX: Final = 16 * MIB
"""Of that file, with room."""

CURVES_CHANGED_SHARE: Final = 16
"""That file is written when one in 16 of its curves has changed, and at the end: an unload then costs the writing of 16 curves at
most, about 80 KB, however many are kept."""
