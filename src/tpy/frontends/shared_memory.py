"""The one place where tensors in shared memory would be found. This server does not offer shared memory to clients yet, so it
answers as a Triton that was started without it."""

from __future__ import annotations

from typing import NoReturn

from tpy.errors import Unsupported


def refuse_shared_memory() -> NoReturn:
    """Raise Unsupported: an input or output names a shared memory region."""
    raise Unsupported("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
