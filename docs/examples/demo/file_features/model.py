"""A file's bytes -> the input of magika: its first and last 1024 bytes without outer white space, padded with 256."""

import numpy as np

import triton_python_backend_utils as pb_utils

BLOCK = 4096
PART = 1024
PADDING = 256


def features(content: bytes) -> np.ndarray:
    """INT32[2048] for one file."""
    begin = content[:BLOCK].lstrip()[:PART]
    end = content[-BLOCK:].rstrip()[-PART:]
    row = np.full(2 * PART, PADDING, np.int32)
    row[: len(begin)] = np.frombuffer(begin, np.uint8)
    if end:
        row[-len(end) :] = np.frombuffer(end, np.uint8)
    return row


class TritonPythonModel:
    """FILE: BYTES[N,1], whole files -> bytes: INT32[N,2048]."""

    def execute(self, requests):
        responses = []
        for request in requests:
            files = pb_utils.get_input_tensor_by_name(request, "FILE").as_numpy().reshape(-1)
            rows = np.stack([features(content) for content in files])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("bytes", rows)]))
        return responses
