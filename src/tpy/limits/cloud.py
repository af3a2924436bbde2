"""Bounds of repositories in the cloud."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB

CLOUD_CACHE_BYTES_DEFAULT: Final = 100 * 1024 * MIB
"""Local copies of models: the default of --repository-cache-byte-size, some tens of large models."""

CLOUD_REQUESTS_MAX: Final = 8
"""Requests to all repositories at a time. Enough to fill the usual 10 Gbit/s, and far below what a bucket refuses."""

CLOUD_BLOCK_BYTES: Final = 8 * MIB
"""Larger files are fetched in parts of this size, several at a time; one that fails is all that is fetched again. With
CLOUD_REQUESTS_MAX of them it bounds the memory of downloads."""

CLOUD_MODELS_AT_ONCE_MAX: Final = 4
"""Models that are downloaded ahead at a time: small ones hide each other's round trips."""

CLOUD_CONNECT_S_MAX: Final = 5
"""A TCP and TLS handshake around the world takes one second."""

CLOUD_READ_S_MAX: Final = 10
"""Between two pieces of an answer: an endpoint that is silent for longer hangs."""

CLOUD_REQUEST_S_MAX: Final = 60
"""One request, its answer included: a part of CLOUD_BLOCK_BYTES at 140 kB/s."""

CLOUD_RETRIES_MAX: Final = 4
"""Repetitions of a request that was throttled (503 SlowDown, 429), not answered, or cut off, with pauses that double."""

CLOUD_RETRY_S_MAX: Final = 20
"""No request is repeated after this time."""

CLOUD_LIST_S_MAX: Final = 60
"""One listing of a repository: 100,000 objects are a hundred requests, of a tenth of a second."""

CLOUD_OBJECTS_MAX: Final = 1_000_000
"""Objects of a repository, some 400 bytes of memory each while it is listed: a bucket that is not only a repository has more."""

CLOUD_TRIES_MAX: Final = 3
"""Downloads of an object that came shorter than it is, with another checksum, or changed meanwhile."""

CLOUD_PROGRESS_S: Final = 5.0
"""Between two lines of the log about the download of a model."""

CLOUD_START_PAUSE_S_MAX: Final = 5.0
"""Pause before a repository that does not answer at the start is asked again; it doubles up to this."""

CLOUD_CREDENTIAL_BYTES_MAX: Final = 1 * MIB
"""A file of credentials."""
