"""Classes of images."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import transforms

from ..handler_utils.timer import timed
from ..utils.util import map_class_to_label
from .vision_handler import VisionHandler

IMAGENET = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)
"""An image as networks trained on ImageNet take it."""


class ImageClassifier(VisionHandler):
    """Answers the labels of the `topk` likeliest classes with their probabilities."""

    topk = 5
    image_processing = IMAGENET

    def set_max_result_classes(self, topk: int) -> None:
        """Set the number of classes in an answer."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """The number of classes in an answer."""
        return self.topk

    @timed
    def postprocess(self, data: Any) -> Any:
        probabilities, classes = torch.topk(torch.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
