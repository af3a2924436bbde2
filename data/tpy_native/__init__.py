"""Runs shared libraries that were built for Triton: plays its C interface (`libtritonserver.so`) to them.

The interface itself is C (`src/`, with our own headers in `include/`): every function that a plug-in may call, and the
exchange of batches with the engine, one call for each batch. It needs no headers of Python and links nothing; it is built once
with the machine's compiler (`building`), or comes built with a wheel. `library` loads it and plug-ins, `elf` looks at a file
before that, `surroundings` is where log lines and metrics go. The backend over it is `tpy_native.backend`.
"""

from tpy_native.library import Host, host

__all__ = ["Host", "host"]
