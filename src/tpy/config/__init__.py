"""Model configuration: parsed, then normalised, then validated, into frozen values.

Parsing reports every problem with file, line and column; it never reads a model file (auto-completion does, in backends).
"""

from tpy.config.model_config import ModelConfig

__all__ = ["ModelConfig"]
