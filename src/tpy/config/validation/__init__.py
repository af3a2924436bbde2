"""Says everything that is wrong with a normalised configuration, in Triton's words where it has some.

`validate` looks at the configuration alone: whether files exist, a backend is installed, or another model fits is not known
there. `ensemble_members` is for ensembles, when the models of their steps are loaded.
"""

from tpy.config.validation.rules import validate

__all__ = ["validate"]
