"""An encoded picture -> the input of EfficientNet-Lite0: 224 x 224, RGB, (value - 127) / 128."""

import io

import numpy as np
from PIL import Image, UnidentifiedImageError

import triton_python_backend_utils as pb_utils

SIZE = 224
ZOOM = 256


def features(content: bytes) -> np.ndarray:
    """FP32[3,224,224]: the shorter side scaled to 256, the middle cut out."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    scale = ZOOM / min(image.size)
    image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BICUBIC)
    left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
    pixels = np.asarray(image.crop((left, top, left + SIZE, top + SIZE)), np.float32)
    return ((pixels - 127.0) / 128.0).transpose(2, 0, 1)


class TritonPythonModel:
    """IMAGE: BYTES[N,1], pictures -> INPUT: FP32[N,3,224,224]. A file that is not a picture fails only its own request."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        pictures = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy().reshape(-1)
        try:
            rows = np.stack([features(content) for content in pictures])
        except (UnidentifiedImageError, OSError) as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"not a picture: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor("INPUT", rows)])
