"""Classes of the pixels of images."""

from __future__ import annotations

from typing import Any

import torch

from .image_classifier import IMAGENET
from .vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Answers for each pixel the likeliest class and its probability."""

    image_processing = IMAGENET

    def postprocess(self, data: Any) -> Any:
        best = torch.softmax(data["out"], dim=1).max(dim=1)
        return torch.stack([best.indices.type(best.values.dtype), best.values], dim=3).tolist()
