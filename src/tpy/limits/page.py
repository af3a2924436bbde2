"""Bounds of the page and of what it shows."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

OVERVIEW_INTERVAL_S: Final = 1.0
"""Time between two looks at all models, while somebody reads the stream of them."""

OVERVIEW_SHARE_MAX: Final = 0.01
"""Share of the loop that the looks may take: after one that took long, as of very many models, the next one waits longer."""

OVERVIEW_VIEWERS_MAX: Final = 32
"""Readers of the stream at one port, who share each look. A few kilobytes each, and more while it is sent."""

OVERVIEW_STREAM_S_MAX: Final = 900.0
"""Length of one stream. Who wants to go on asks again, and whether he may is looked at again."""

GRAPH_NODES_MAX: Final = 1000
"""Nodes of a model's graph that are read and drawn. More, a browser draws slowly, and nobody looks at."""

GRAPH_FIELDS_MAX: Final = 1_000_000
"""Fields of a model's file that are looked at for its graph, in a thread: about a second. Each node that is not read is one."""

GRAPH_KEPT_BYTES_MAX: Final = 4 * MIB
"""Names and shapes of a graph, which are kept and sent: of 1,000 nodes some 200 KiB."""

GRAPH_NAME_BYTES_MAX: Final = KIB
"""A name in a graph; longer ones are cut."""

LOG_TAIL_LINES_MAX: Final = 1000
"""The log's newest lines that are kept in memory, half a megabyte as a rule."""

LOG_TAIL_LINE_CHARACTERS_MAX: Final = 4 * KIB
"""A kept line; longer ones, as tracebacks may be, are cut."""
