import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        images = [pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("DARKER", image // 2)]) for image in images]
