"""Turns the lines that stand on their heads.

LINE: FP32[lines,3,48,width], WIDTH: INT32[lines], DIRECTION: FP32[lines,2], how surely a line is upright, and upside down
-> UPRIGHT: FP32[lines,3,48,width]
"""

import triton_python_backend_utils as pb_utils

SURE = 0.9


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        line, width, direction = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("LINE", "WIDTH", "DIRECTION")
        )
        upright = line.copy()
        for index in (direction[:, 1] > SURE).nonzero()[0]:
            end = width[index]
            upright[index, :, :, :end] = line[index, :, ::-1, :end][:, :, ::-1]
        return pb_utils.InferenceResponse([pb_utils.Tensor("UPRIGHT", upright)])
