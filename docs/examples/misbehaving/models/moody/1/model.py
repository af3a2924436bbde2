"""DO: BYTES[1] -> DONE: BYTES[1]. Misbehaves as it is asked to."""

import os
import signal
import time

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        wish = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy().item().decode()
        if wish == "dawdle":
            time.sleep(0.2)
        elif wish == "hang":
            while True:
                time.sleep(1)
        elif wish == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif wish == "raise":
            {}["a key"]
        elif wish == "forget":
            return pb_utils.InferenceResponse([])
        return pb_utils.InferenceResponse([pb_utils.Tensor("DONE", np.array([wish.encode()], dtype=object))])
