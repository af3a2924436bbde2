"""Bounds between the engine and frontend processes."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

REMOTE_FRAME_BYTES_MAX: Final = 3 * 1024 * MIB
"""One frame between the engine and a frontend process: above the largest request message, as a tensor goes inline when there is
no room in the shared memory."""

REMOTE_INLINE_BYTES_MAX: Final = 32 * KIB
"""Tensors up to this size travel in their message: two copies cost less than a block of shared memory and its release."""

REMOTE_LOOP_BYTES_MAX: Final = 4 * MIB
"""Tensors of a message that are copied on the loop, which takes some milliseconds; what has more is written, and strings are
read, in a thread."""

REMOTE_PIECE_BYTES_MIN: Final = MIB
"""A string from this size on is read without the interpreter's lock: 60 MB of new memory take 25 ms."""

REMOTE_ARENA_BYTES: Final = 1024 * MIB
"""Shared memory for tensors, each way, of a frontend process: address space; only what is written takes memory. What finds no
room goes through the socket."""

REMOTE_ARENA_WARM_BYTES: Final = 64 * MIB
"""Pages of free shared memory that are kept for the next tensors; what lies above is given back when it is free."""

REMOTE_REGION_BYTES_MAX: Final = MIB
"""Copied from or to a client's region in a GPU's memory by one call of a frontend process: what is behind it on the connection
waits no longer."""

REMOTE_REQUESTS_MAX: Final = 65_536
"""Requests of one frontend process that are not answered; beyond it they are refused."""

REMOTE_CALLS_MAX: Final = 4_096
"""The same for calls to the other services."""

REMOTE_OUTBOUND_BYTES_MAX: Final = 512 * MIB
"""Bytes of a frontend process that the engine has not taken; beyond it requests are refused."""

REMOTE_WINDOW_RESPONSES: Final = 64
"""Responses of one request that are on their way to a frontend process; with as many the engine pauses the request."""

REMOTE_WINDOW_BYTES: Final = 4 * MIB
"""The same in bytes of their tensors."""

REMOTE_RECEIVE_BYTES: Final = 256 * KIB
"""Read from a frontend process in one turn of the loop: no process has more than its turn."""

REMOTE_STALL_S_MAX: Final = 30
"""A frontend process that takes nothing of what the engine has for it for so long is stuck, and replaced."""

REMOTE_SEEN_S_MAX: Final = 5.0
"""A call that changed what is served is answered when all frontend processes know it; one that says nothing for so long is not
waited for."""

REMOTE_START_S_MAX: Final = 60
"""From the start of a frontend process until it serves: Python and its modules from a cold disk take some seconds."""

REMOTE_RESTART_BACKOFF_S_MIN: Final = 0.1
"""Pause before a frontend process is replaced."""

REMOTE_RESTART_BACKOFF_S_MAX: Final = 5.0
"""The pause doubles, up to this, with each one that ended before it had lived REMOTE_HEALTHY_S."""

REMOTE_HEALTHY_S: Final = 10.0
"""A frontend process that lived for so long had started well."""

REMOTE_EXIT_GRACE_S: Final = 2.0
"""From a frontend process's last answer to its end; then it is killed."""
