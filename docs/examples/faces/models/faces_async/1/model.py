"""The same as the model `faces`, with calls that do not wait for each other: all levels of the pyramid are asked at once.

IMAGE: BYTES[1], an encoded picture
-> BOX: FP32[faces,4], left, top, right, bottom in pixels, SCORE: FP32[faces],
   LANDMARKS: FP32[faces,5,2], x and y of the eyes, the nose, the corners of the mouth; the surest face first.
"""

import asyncio
import io

import numpy as np
from PIL import Image

import triton_python_backend_utils as pb_utils

from . import cascade

MOST = 64
"""Rows that rnet and onet take in one request."""


async def infer(model, name, array, outputs):
    """The outputs of a model, as arrays. An error of the model fails this request, with the model's name."""
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=[pb_utils.Tensor(name, array)]
    )
    response = await request.async_exec()
    if response.has_error():
        raise pb_utils.TritonModelException(f"{model}: {response.error().message()}")
    return [pb_utils.get_output_tensor_by_name(response, output).as_numpy() for output in outputs]


async def infer_rows(model, name, array, outputs):
    """The same in as many requests as the rows need."""
    parts = await asyncio.gather(
        *(infer(model, name, array[first : first + MOST], outputs) for first in range(0, len(array), MOST))
    )
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        [content] = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        try:
            image = Image.open(io.BytesIO(content)).convert("RGB")
        except (OSError, Image.DecompressionBombError) as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"not a picture: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        boxes, landmarks = await self.faces(image)
        arrays = {"BOX": boxes[:, :4], "SCORE": boxes[:, 4], "LANDMARKS": landmarks}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array.astype(np.float32)) for name, array in arrays.items()])

    async def faces(self, image):
        """Boxes [faces,5] and landmarks [faces,5,2]."""
        levels = cascade.pyramid(image)
        answers = await asyncio.gather(
            *(infer("pnet", "input_1", level[np.newaxis], ["conv2d_4", "softmax"]) for _, level in levels)
        )
        found = [
            cascade.candidates(scale, *(output[0] for output in answer))
            for (scale, _), answer in zip(levels, answers, strict=True)
        ]
        boxes = cascade.proposals(np.concatenate([np.empty((0, 5)), *found]))
        if len(boxes):
            moves, scores = await infer_rows("rnet", "input_2", cascade.crops(image, boxes, 24), ["dense_2", "softmax_1"])
            boxes = cascade.refined(boxes, moves, scores)
        if not len(boxes):
            return np.empty((0, 5)), np.empty((0, 5, 2))
        outputs = ["dense_5", "dense_6", "softmax_2"]
        moves, points, scores = await infer_rows("onet", "input_3", cascade.crops(image, boxes, 48), outputs)
        return cascade.faces(boxes, moves, points, scores)
