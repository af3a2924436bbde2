"""Counts the words of a text in sixteen buckets: texts with the same words are near each other."""

import zlib

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()) for request in requests]

    def answer(self, texts):
        vectors = np.zeros((len(texts), 16), np.float32)
        counts = np.zeros((len(texts), 1), np.int32)
        for row, [text] in enumerate(texts):
            words = text.lower().split()
            counts[row] = len(words)
            for word in words:
                vectors[row, zlib.crc32(word) % 16] += 1
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors), pb_utils.Tensor("num_input_tokens", counts)])
