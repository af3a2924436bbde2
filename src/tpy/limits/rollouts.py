"""Bounds of rollouts."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

ROLLOUT_LOOK_S: Final = 1.0
"""Seconds between two looks at the gates of rollouts: steps take a minute or more."""

ROLLOUT_FILE_BYTES_MAX: Final = 16 * MIB
"""The file of rollouts: a hundred bytes a model, and the plan that a call has given."""

ROLLOUT_PLAN_BYTES_MAX: Final = 8 * KIB
"""A plan that comes with a call, as UTF-8: 100 steps need 4 KiB. It is read on the event loop, and kept in the file."""

ROLLOUT_BODY_BYTES_MAX: Final = ROLLOUT_PLAN_BYTES_MAX + KIB
"""The body of a call over HTTP, which has the action and spaces beside the plan."""

ROLLOUT_COPIES_MAX: Final = 8
"""Requests that new versions answer for comparison at a time, of all models: what comes meanwhile is not copied."""

ROLLOUT_COPY_BYTES_MAX: Final = 8 * MIB
"""Inputs, or outputs, of a request that is copied for comparison: they are kept until both versions have answered."""
