"""Every bound of the server, with why it has its value. A bound that is not here does not exist."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

HTTP_INPUT_BYTES_MAX_DEFAULT: Final = 64 * MIB
"""--http-max-input-size: Triton's default. Bounds the request body, before and after decompression."""

HTTP_HEADER_BYTES_MAX: Final = 64 * KIB
"""Request line plus headers. Generous for auth tokens, far below what hurts."""

HTTP_PIPELINED_REQUESTS_MAX: Final = 16
"""Requests of one connection that may wait for their turn; the reader stops reading beyond it."""

HTTP_CHUNKS_MAX: Final = 65_536
"""Chunks in one chunked request body, as Triton 2.73."""

JSON_DEPTH_MAX: Final = 100
"""Nesting of `data` in a JSON request, as Triton 2.73."""

BATCH_REQUESTS_MAX: Final = 65_536
"""Requests in one batch; beyond any real max_batch_size, stops a configuration typo from growing a list."""

LOAD_OVERRIDE_BYTES_MAX: Final = 2048 * MIB
"""Sum of the `file:` overrides in one load call."""

CONFIG_BYTES_MAX: Final = 16 * MIB
"""Size of a config.pbtxt or of a `config` override."""

WORKER_RESTART_BACKOFF_S_MIN: Final = 1
"""Pause before the first restart of a failed instance."""

WORKER_RESTART_BACKOFF_S_MAX: Final = 60
"""The pause doubles with each failure in a row up to this."""

PRIORITY_LEVELS_MAX: Final = 1024
"""`dynamic_batching.priority_levels`: each level is a queue of its own that is looked at when a batch is formed."""

CLASSIFICATION_ELEMENTS_MAX: Final = 1_000_000
"""Elements of one row that classification sorts, as Triton 2.73."""

TENSOR_DIMS_MAX: Final = 32
"""Dimensions of a tensor: what every supported numpy can hold."""

JSON_EXPLAIN_BYTES_MAX: Final = 64 * KIB
"""Broken JSON up to this size is scanned again for Triton's exact text and offset; that scan is slow, so longer documents get
the parser's own words."""

SEQUENCE_ID_CHARACTERS_MAX: Final = 128
"""A sequence id that is a string, as Triton."""
