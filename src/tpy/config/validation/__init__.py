"""Says everything that is wrong with a normalised configuration, in Triton's words where it has some.

Looks at the configuration alone: whether files exist, a backend is installed, or another model fits is not known here.
"""

from tpy.config.validation.rules import validate

__all__ = ["validate"]
