"""Reads the reader's columns: in each, the likeliest character, if it is one and not that of the column before.

BOX: FP32[lines,4] and CHARACTER: FP32[lines or 1,columns,6625]
-> TEXT: BYTES[lines] and SCORE: FP32[lines], how sure it is on average
"""

from pathlib import Path

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        known = (Path(__file__).parent / "characters.txt").read_text(encoding="utf-8").split("\n")
        self.characters = ["", *known, " "]  # 0 stands for: no character, or the same still

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        box, character = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("BOX", "CHARACTER"))
        lines = [self.read(columns) for columns in character[: len(box)]]
        texts = np.array([text.encode() for text, _ in lines], dtype=object)
        scores = np.array([score for _, score in lines], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", texts), pb_utils.Tensor("SCORE", scores)])

    def read(self, columns):
        best, sure = columns.argmax(axis=1), columns.max(axis=1)
        new = (best > 0) & (best != np.concatenate([[0], best[:-1]]))
        text = "".join(self.characters[index] for index in best[new])
        return text, float(sure[new].mean()) if new.any() else 0.0
