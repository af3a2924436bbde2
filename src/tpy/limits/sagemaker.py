"""Bounds of the SageMaker frontend."""

from __future__ import annotations

from typing import Final

SAGEMAKER_LOAD_BYTES_MAX: Final = 64 * 1024
"""The body of a load call: a name and a path. It is read on the loop."""

SAGEMAKER_UNLOAD_S_MAX: Final = 350.0
"""Wait for a model to be unloaded, as Triton's: SageMaker gives up after 360 s."""

SAGEMAKER_UNLOAD_PAUSE_S: Final = 0.05
"""Pause between two looks at it."""
