"""Custom batching strategies: compiled libraries that say which requests belong into a batch (TRITONBACKEND_ModelBatch*).

`opening` opens one, as the entry `.so` of the group `tpy.strategies`; the scheduler's core asks it through `BatchStrategy`. It is
asked on the loop's thread, for each request that a batch could take; it runs in a separate process (`process`) unless the model's
parameter `isolation` is `thread`: then a question costs some microseconds in place of some tens, and a crash ends the server.
"""

from tpy_native.strategies.opening import open_strategy

__all__ = ["open_strategy"]
