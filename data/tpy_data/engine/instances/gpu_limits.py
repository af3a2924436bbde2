"""--model-load-gpu-limit: how full a GPU may be once an instance on it has been made."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.backend import InstancePlacement
from tpy.errors import InvalidArgument, Unavailable
from tpy_data import gpus


def parse_gpu_limits(texts: Sequence[str]) -> dict[int, float]:
    """Shares by device of `<device>:<fraction>`; of a device that is given twice the first counts, as in Triton.

    Raises InvalidArgument, naming what is wrong.
    """
    limits: dict[int, float] = {}
    for text in texts:
        device_text, _, share_text = text.partition(":")
        try:
            device, share = int(device_text), float(share_text)
        except ValueError:
            raise InvalidArgument(f"expected <device>:<fraction>, got '{text}'") from None
        if device < 0:
            raise InvalidArgument(f"expects device ID >= 0, got {device}")
        if not 0.0 <= share <= 1.0:
            raise InvalidArgument(f"expects limit fraction to be in range [0.0, 1.0], got {share:f}")
        limits.setdefault(device, share)
    return limits


def require_share(placement: InstancePlacement, share_max: float) -> None:
    """Raises Unavailable, with Triton's text, when the instance's GPU is fuller; Internal when it cannot be asked."""
    memory = gpus.memory(placement.device_id)
    if memory.used > memory.total * share_max:
        raise Unavailable(
            f"can not create model '{placement.name}': memory limit set for GPU {placement.device_id} has exceeded, model "
            "loading is rejected."
        )
