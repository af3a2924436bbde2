"""IMAGE: BYTES[1], an encoded picture -> PAGE: UINT8[height,width,3], its pixels, and SCALED: FP32[1,3,H,W] for the detector."""

import io

import numpy as np
from PIL import Image

import triton_python_backend_utils as pb_utils

STEP = 32
LONGEST = 1280
"""Sides of what the detector sees: multiples of STEP, at most LONGEST."""


def scaled(page):
    """FP32[1,3,H,W], blue first, between -1 and 1."""
    factor = min(1, LONGEST / max(page.size))
    size = [max(STEP, round(side * factor / STEP) * STEP) for side in page.size]
    pixels = np.asarray(page.resize(size, Image.Resampling.BILINEAR), np.float32)
    return (pixels[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)[np.newaxis]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        [content] = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        try:
            page = Image.open(io.BytesIO(content)).convert("RGB")
        except (OSError, Image.DecompressionBombError) as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"not a picture: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("PAGE", np.asarray(page)), pb_utils.Tensor("SCALED", np.ascontiguousarray(scaled(page)))]
        )
