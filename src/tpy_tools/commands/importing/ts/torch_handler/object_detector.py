"""Objects in images."""

from __future__ import annotations

from typing import Any

from torchvision import transforms

from ..utils.util import map_class_to_label
from .vision_handler import VisionHandler


class ObjectDetector(VisionHandler):
    """Answers label, box and score of each object whose score is at least `threshold`."""

    image_processing = transforms.Compose([transforms.ToTensor()])
    threshold = 0.5

    def postprocess(self, data: Any) -> Any:
        return [self._objects(found) for found in data]

    def _objects(self, found: Any) -> list[dict[str, Any]]:
        sure = found["scores"] >= self.threshold
        boxes, labels, scores = (found[name][sure].tolist() for name in ("boxes", "labels", "scores"))
        return [
            {**map_class_to_label([[box]], self.mapping, [[label]])[0], "score": score}
            for box, label, score in zip(boxes, labels, scores)  # noqa: B905
        ]
