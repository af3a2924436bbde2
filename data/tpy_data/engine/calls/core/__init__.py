"""Sans-IO: which calls between models can never end."""

from tpy_data.engine.calls.core.call_circles import CallingBatch, find_circle

__all__ = ["CallingBatch", "find_circle"]
