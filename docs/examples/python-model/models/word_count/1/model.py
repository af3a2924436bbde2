"""TEXT: BYTES[N,1] -> WORDS: INT32[N,1], how many words each text has."""

import numpy as np

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(8)
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "WORDS", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        pb_utils.Logger.log_info(f"{args['model_instance_name']} counts words")

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        try:
            counts = [len(text.decode().split()) for text in texts.flat]
        except UnicodeDecodeError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        words = np.array(counts, dtype=np.int32).reshape(texts.shape)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", words)])
