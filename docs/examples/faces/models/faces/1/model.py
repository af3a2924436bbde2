"""Faces on a picture, by three models that are called as often as the picture needs: a business logic script.

IMAGE: BYTES[1], an encoded picture
-> BOX: FP32[faces,4], left, top, right, bottom in pixels, SCORE: FP32[faces],
   LANDMARKS: FP32[faces,5,2], x and y of the eyes, the nose, the corners of the mouth; the surest face first.
"""

import io

import numpy as np
from PIL import Image

import triton_python_backend_utils as pb_utils

from . import cascade

MOST = 64
"""Rows that rnet and onet take in one request."""


def infer(model, name, array, outputs):
    """The outputs of a model, as arrays. An error of the model fails this request, with the model's name."""
    request = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=list(outputs), inputs=[pb_utils.Tensor(name, array)]
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(f"{model}: {response.error().message()}")
    return [pb_utils.get_output_tensor_by_name(response, output).as_numpy() for output in outputs]


def infer_rows(model, name, array, outputs):
    """The same in as many requests as the rows need."""
    parts = [infer(model, name, array[first : first + MOST], outputs) for first in range(0, len(array), MOST)]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        [content] = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        try:
            image = Image.open(io.BytesIO(content)).convert("RGB")
        except (OSError, Image.DecompressionBombError) as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"not a picture: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        boxes, landmarks = self.faces(image)
        arrays = {"BOX": boxes[:, :4], "SCORE": boxes[:, 4], "LANDMARKS": landmarks}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array.astype(np.float32)) for name, array in arrays.items()])

    def faces(self, image):
        """Boxes [faces,5] and landmarks [faces,5,2]."""
        found = [np.empty((0, 5))]
        for scale, level in cascade.pyramid(image):
            moves, scores = infer("pnet", "input_1", level[np.newaxis], ["conv2d_4", "softmax"])
            found.append(cascade.candidates(scale, moves[0], scores[0]))
        boxes = cascade.proposals(np.concatenate(found))
        if len(boxes):
            moves, scores = infer_rows("rnet", "input_2", cascade.crops(image, boxes, 24), ["dense_2", "softmax_1"])
            boxes = cascade.refined(boxes, moves, scores)
        if not len(boxes):
            return np.empty((0, 5)), np.empty((0, 5, 2))
        outputs = ["dense_5", "dense_6", "softmax_2"]
        moves, points, scores = infer_rows("onet", "input_3", cascade.crops(image, boxes, 48), outputs)
        return cascade.faces(boxes, moves, points, scores)
