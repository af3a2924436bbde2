"""The base of handlers of images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from ..handler_utils.timer import timed
from .base_handler import BaseHandler


class VisionHandler(BaseHandler):
    """Makes tensors of images by `image_processing`, which subclasses have."""

    image_processing: Callable[[Any], Any]

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels"):
            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: Any) -> Any:
        """A batch of the images in the requests: files, files in base64, or lists of numbers."""
        return torch.stack([self._image(row.get("data") or row.get("body")) for row in data]).to(self.device)

    def _image(self, sent: Any) -> Any:
        if isinstance(sent, str):
            sent = base64.b64decode(sent)
        if isinstance(sent, (bytes, bytearray)):
            return self.image_processing(Image.open(io.BytesIO(sent)))
        return torch.FloatTensor(sent)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> Any:
        """The importance of each number of an image for a class, by integrated gradients. Needs captum."""
        from captum.attr import IntegratedGradients

        return IntegratedGradients(self.model).attribute(tensor_data, target=target, n_steps=15).tolist()
