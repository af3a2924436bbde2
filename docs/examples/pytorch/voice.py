"""A voice detector that keeps what it heard inside itself, and is told where a recording begins."""

from __future__ import annotations

from typing import Any

import torch


class Voice(torch.nn.Module):
    """512 samples at 16 kHz [1,512], and whether a recording begins with them -> how likely it is that somebody speaks [1,1]."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, chunk: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        if bool(start[0]):
            self.detector.reset_states()
        return self.detector(chunk, 16000)
