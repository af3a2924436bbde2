"""hidden: FP32[N,tokens,384], mask: INT64[N,tokens] -> EMBEDDING: FP32[N,384], the mean over each text's tokens, of length 1."""

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        hidden, mask = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("hidden", "mask"))
        total = np.einsum("ntd,nt->nd", hidden, mask.astype(np.float32))
        unit = total / np.linalg.norm(total, axis=1, keepdims=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", unit)])
