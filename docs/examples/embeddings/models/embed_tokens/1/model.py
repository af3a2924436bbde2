"""TEXT: BYTES[N,1], UTF-8 -> input_ids, attention_mask, token_type_ids: INT64[N,tokens], as many as the longest text has."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import triton_python_backend_utils as pb_utils

LONGEST = 256
"""Tokens; what a text has more is left out."""
STEP = 16
"""Lengths are multiples of this: texts of different requests are then often equally long, and go through the network together."""


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).parent / "tokenizer.json"))
        self.tokenizer.enable_padding(pad_to_multiple_of=STEP)
        self.tokenizer.enable_truncation(LONGEST)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        try:
            tokens = self.tokenizer.encode_batch([text.decode() for text in texts])
        except UnicodeDecodeError as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"TEXT is not UTF-8: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        columns = {
            "input_ids": [row.ids for row in tokens],
            "attention_mask": [row.attention_mask for row in tokens],
            "token_type_ids": [row.type_ids for row in tokens],
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.array(rows, np.int64)) for name, rows in columns.items()])
