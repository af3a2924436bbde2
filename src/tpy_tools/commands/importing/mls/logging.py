"""The logger of MLServer."""

from __future__ import annotations

import logging

logger = logging.getLogger("mlserver")


def get_logger() -> logging.Logger:
    """The logger."""
    return logger
